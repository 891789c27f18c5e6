/*-------------------------------------------------------------------------
 *
 * relay_kafka_flush.c
 *		Records that are to be sent at once.
 *
 * How long the library gathers records (linger.ms) is set when a producer is made.
 * While rd_kafka_flush runs it sends each as soon as it can; but that waits until
 * the worker has taken all reports, so a thread does it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "relay_kafka_private.h"

/* so soon it is seen that no flush is wanted any more; longer than linger.ms */
#define FLUSH_MSEC	100

struct Flusher
{
	pthread_t	thread;
	pthread_mutex_t mutex;		/* of what follows */
	pthread_cond_t changed;
	rd_kafka_t *wanted;			/* producer to be flushed, or NULL */
	bool		ended;
};

/* Waits until a flush is wanted; NULL: never again. */
static rd_kafka_t *
wait_for_wish(Flusher *flusher)
{
	rd_kafka_t *rk;

	pthread_mutex_lock(&flusher->mutex);
	while (flusher->wanted == NULL && !flusher->ended)
		pthread_cond_wait(&flusher->changed, &flusher->mutex);
	rk = flusher->ended ? NULL : flusher->wanted;
	flusher->wanted = NULL;
	pthread_mutex_unlock(&flusher->mutex);
	return rk;
}

static void *
run_flushes(void *arg)
{
	Flusher    *flusher = arg;
	rd_kafka_t *rk;

	/* what is not sent by then is older than linger.ms, and goes as soon as it can */
	while ((rk = wait_for_wish(flusher)) != NULL)
		rd_kafka_flush(rk, FLUSH_MSEC);
	return NULL;
}

/* Makes the thread, which waits; NULL: error says why not. */
Flusher *
relay_kafka_flusher_begin(char *error, size_t error_size)
{
	Flusher    *flusher = malloc(sizeof(Flusher));
	int			failure = ENOMEM;

	if (flusher != NULL)
	{
		*flusher = (Flusher) {0};
		pthread_mutex_init(&flusher->mutex, NULL);
		pthread_cond_init(&flusher->changed, NULL);
		failure = relay_kafka_thread(&flusher->thread, run_flushes, flusher);
	}
	if (failure != 0)
	{
		snprintf(error, error_size, "could not make a thread: %s", strerror(failure));
		free(flusher);
		return NULL;
	}
	return flusher;
}

/* Waits for a flush that runs; so it is called in a thread that knows nothing of the server. */
void
relay_kafka_flusher_end(Flusher *flusher)
{
	if (flusher == NULL)
		return;
	pthread_mutex_lock(&flusher->mutex);
	flusher->ended = true;
	pthread_cond_signal(&flusher->changed);
	pthread_mutex_unlock(&flusher->mutex);
	pthread_join(flusher->thread, NULL);
	pthread_cond_destroy(&flusher->changed);
	pthread_mutex_destroy(&flusher->mutex);
	free(flusher);
}

/* Has the library send what it was given, and what it is given meanwhile, at once. */
void
relay_kafka_flush(RelayKafka *kafka)
{
	Flusher    *flusher = kafka->flusher;

	pthread_mutex_lock(&flusher->mutex);
	if (flusher->wanted == NULL)
		pthread_cond_signal(&flusher->changed);
	flusher->wanted = kafka->rk;
	pthread_mutex_unlock(&flusher->mutex);
}
