/*-------------------------------------------------------------------------
 *
 * relay_run.c
 *		What is remembered of earlier runs of the worker, for the case that one of
 *		its rows ends it.
 *
 * A worker that dies takes the whole server through a recovery; if a row is to
 * blame, that would go on for ever.  So a file in the data folder counts the ends
 * since the last mark that were not orderly, of runs that had something to do.
 * After the first one the worker is careful: few rows are on their way at a time,
 * and the file names them.  After the second the relay pauses.
 *
 * Nothing is flushed: the file has to survive the worker, not the machine.  Where
 * the whole server ended, or another process died and took the worker along, the
 * worker is not to blame, and it does not count.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/timestamp.h"

#include "relay_run.h"

/* the first character of the file: who is to blame for the end of the run */
#define WORKER		'w'
#define ANOTHER		'a'

static int	unclean = 0;		/* ends before this run */
static bool careful = false;
static volatile bool written = false;	/* the file is this run's */
static char name[64] = "";		/* of the file, in the data folder */

/* Writes the file anew. */
static void
write_file(void)
{
	FILE	   *file = AllocateFile(name, PG_BINARY_W);

	if (file == NULL ||
		fprintf(file, "%c" INT64_FORMAT " %d\n", WORKER, (int64) PgStartTime, unclean) < 0 || FreeFile(file) != 0)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", name)));
}

/* What the last run left; 0: it ended in order, or with the whole server. */
static int
read_file(char *rows, size_t size)
{
	FILE	   *file;
	char		blame;
	int64		started;
	int			ends = 0;
	int			n;

	rows[0] = '\0';
	file = AllocateFile(name, PG_BINARY_R);
	if (file == NULL)
		return 0;
	if (fscanf(file, "%c" INT64_FORMAT " %d\n", &blame, &started, &n) == 3 && started == (int64) PgStartTime)
	{
		size_t		len = fread(rows, 1, size - 1, file);

		while (len > 0 && rows[len - 1] != ';')
			len--;
		rows[len > 0 ? len - 1 : 0] = '\0';
		ends = n + (blame == WORKER);
	}
	FreeFile(file);
	return ends;
}

/*
 * Begins a run.  Gives how many runs in a row ended in disorder and without a
 * mark, and the rows that were on their way in the last one, as far as known.
 */
int
relay_run_begin(char *rows, size_t size)
{
	snprintf(name, sizeof(name), "idem_relay.%u", MyDatabaseId);
	unclean = read_file(rows, size);
	careful = unclean > 0;
	return unclean;
}

/*
 * There are rows to be read.  Only now this run counts: a worker that had nothing
 * to do is not to blame for its death.
 */
void
relay_run_busy(void)
{
	if (!written)
		write_file();
	written = true;
}

/* A careful worker is about to produce a row. */
void
relay_run_row(const RelayRow *row)
{
	char		line[64];
	int			fd;

	if (!careful)
		return;
	snprintf(line, sizeof(line), "seq " INT64_FORMAT " of outbox_%02d; ", row->seq, row->leaf);
	fd = OpenTransientFile(name, O_WRONLY | O_APPEND | PG_BINARY);
	if (fd < 0)
		return;
	if (write(fd, line, strlen(line)) < 0)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", name)));
	CloseTransientFile(fd);
}

/* Rows were marked: whatever ended the runs before, the relay gets on. */
void
relay_run_marked(void)
{
	if (unclean == 0)
		return;
	unclean = 0;
	careful = false;
	write_file();
}

/*
 * The worker is ended because another process died.  Called by a signal handler:
 * nothing but system calls.
 */
void
relay_run_cut(void)
{
	int			fd = written ? open(name, O_WRONLY) : -1;
	char		blame = ANOTHER;

	if (fd >= 0 && pwrite(fd, &blame, 1, 0) == 1)
		close(fd);
}

/* An orderly end. */
void
relay_run_end(void)
{
	unlink(name);
}
