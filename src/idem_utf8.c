/*-------------------------------------------------------------------------
 *
 * idem_utf8.c
 *	  Strings of the database as UTF-8, whatever its encoding.
 *
 * The canonical form is UTF-8, so that a value has one hash in all databases.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_conversion.h"
#include "catalog/pg_namespace.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"

#include "compat.h"
#include "idem_utf8.h"

/* Strings of another encoding are converted in pieces of this many bytes. */
#define CONVERSION_PIECE 65536

/* Complain about a string that the canonical form can't hold. */
static void
report_no_utf8(const Utf8Source *source)
{
	ereport(ERROR,
			(errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
			 errmsg("a string in the JSON value has no UTF-8 form"),
			 errdetail("The canonical form is UTF-8, and the encoding of this database is \"%s\".",
					   pg_encoding_to_char(source->encoding)),
			 errhint("Store JSON with such strings in a database with encoding \"UTF8\".")));
}

/* Begin to convert strings. */
void
utf8_source_init(Utf8Source *source)
{
	source->encoding = GetDatabaseEncoding();
	source->is_utf8 = source->encoding == PG_UTF8;
	source->conversion = InvalidOid;
}

/*
 * Convert a string of another server encoding.  The conversion is looked up in
 * pg_catalog only: a default conversion that someone put into the search path
 * must not change a hash.  A text of 1 GB may become longer than an int can
 * say, so it is converted piece by piece.
 */
static char *
convert(Utf8Source *source, const char *str, size_t len, size_t *utf8_len)
{
	size_t		space = Min(len, CONVERSION_PIECE) * MAX_CONVERSION_GROWTH + 1;
	size_t		used = 0;
	char	   *utf8;

	if (!OidIsValid(source->conversion))
		source->conversion = FindDefaultConversion(PG_CATALOG_NAMESPACE,
												   source->encoding, PG_UTF8);
	if (!OidIsValid(source->conversion))
		report_no_utf8(source);

	utf8 = palloc(space);
	while (len > 0)
	{
		int			piece = pg_encoding_mbcliplen(source->encoding, str,
												  (int) Min(len, CONVERSION_PIECE),
												  CONVERSION_PIECE);
		int			room = piece * MAX_CONVERSION_GROWTH + 1;

		CHECK_FOR_INTERRUPTS();
		if (used + room > space)
		{
			space = Max(used + room, 2 * space);
			utf8 = repalloc_huge(utf8, space);
		}
		if (piece == 0 ||
			pg_do_encoding_conversion_buf(source->conversion,
										  source->encoding, PG_UTF8,
										  unconstify(unsigned char *,
													 (const unsigned char *) str),
										  piece,
										  (unsigned char *) utf8 + used, room,
										  true) != piece)
			report_no_utf8(source);
		used += strlen(utf8 + used);
		str += piece;
		len -= piece;
	}
	*utf8_len = used;
	return utf8;
}

/*
 * A string of the database as UTF-8: itself, or a copy that the caller frees.
 * Bytes of a SQL_ASCII database say nothing of their encoding; they are taken
 * as they are, and the caller has to look whether they are valid UTF-8.
 *
 * Raises 22021 when the string has no UTF-8 form.
 */
const char *
utf8_from_database(Utf8Source *source, const char *str, size_t len,
				   size_t *utf8_len)
{
	size_t		at = 0;

	*utf8_len = len;
	if (source->is_utf8 || source->encoding == PG_SQL_ASCII)
		return str;

	/* ASCII is the same in every encoding a server can have. */
	while (at < len && !IS_HIGHBIT_SET(str[at]))
		at++;
	return at == len ? str : convert(source, str, len, utf8_len);
}

/* The same for a string that nobody else will check. */
const char *
utf8_from_database_checked(Utf8Source *source, const char *str, size_t len,
						   size_t *utf8_len)
{
	if (source->encoding == PG_SQL_ASCII &&
		!pg_verify_mbstr(PG_UTF8, str, (int) len, true))
		report_no_utf8(source);
	return utf8_from_database(source, str, len, utf8_len);
}
