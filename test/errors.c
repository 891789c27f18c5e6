/*
 * Prints each error that the client library knows with the class that the relay
 * gives it: NAME CLASS, a line each.  An error that the relay knows and the
 * library does not has the class UNKNOWN.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <librdkafka/rdkafka.h>

#include "relay_errors.h"

static const char *const classes[] = {"transient", "target", "size", "row", "returned"};

int
main(void)
{
	const struct rd_kafka_err_desc *errors;
	size_t		n;

	rd_kafka_get_err_descs(&errors, &n);
	for (size_t i = 0; i < n; i++)
		if (errors[i].name != NULL)
			printf("%s %s\n", errors[i].name, classes[relay_error_class(errors[i].name)]);
	for (int i = 0; i < relay_nerrors; i++)
	{
		bool		known = false;

		for (size_t j = 0; j < n && !known; j++)
			known = errors[j].name != NULL && strcmp(errors[j].name, relay_errors[i].name) == 0;
		if (!known)
			printf("%s UNKNOWN\n", relay_errors[i].name);
	}
	return 0;
}
