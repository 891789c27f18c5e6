/*-------------------------------------------------------------------------
 *
 * relay_kafka_flush.c
 *		Records that are to be sent at once.
 *
 * How long the library gathers records (linger.ms) is set when a producer is made.
 * While rd_kafka_flush runs it sends each as soon as it can; but that waits until
 * all are acknowledged, so a thread does it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <pthread.h>
#include <signal.h>

#include "relay_kafka_private.h"

/* so soon it is seen that a flush is no longer wanted */
#define FLUSH_MSEC	100

struct Flusher
{
	rd_kafka_t *rk;
	pthread_t	thread;
	pthread_mutex_t mutex;		/* of what follows */
	pthread_cond_t changed;
	bool		wanted;
	bool		ended;
};

/* Makes a thread that takes no signals; it must know nothing of the server.  0, or an errno. */
int
relay_kafka_thread(pthread_t *thread, void *(*run) (void *), void *arg)
{
	sigset_t	all;
	sigset_t	old;
	int			error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	error = pthread_create(thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return error;
}

/* Waits until a flush is wanted; false: never again. */
static bool
wait_for_wish(Flusher *flusher)
{
	bool		ended;

	pthread_mutex_lock(&flusher->mutex);
	while (!flusher->wanted && !flusher->ended)
		pthread_cond_wait(&flusher->changed, &flusher->mutex);
	flusher->wanted = false;
	ended = flusher->ended;
	pthread_mutex_unlock(&flusher->mutex);
	return !ended;
}

static void *
run_flushes(void *arg)
{
	Flusher    *flusher = arg;

	/* what is not acknowledged by then has been sent, or goes after linger.ms */
	while (wait_for_wish(flusher))
		rd_kafka_flush(flusher->rk, FLUSH_MSEC);
	return NULL;
}

/* NULL: error says why not. */
Flusher *
relay_kafka_flusher_begin(rd_kafka_t *rk, char *error, size_t error_size)
{
	Flusher    *flusher = malloc(sizeof(Flusher));
	int			failure = ENOMEM;

	if (flusher != NULL)
	{
		*flusher = (Flusher) {.rk = rk};
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

/* Waits for a flush that runs; in a thread that knows nothing of the server. */
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
	if (!flusher->wanted)
		pthread_cond_signal(&flusher->changed);
	flusher->wanted = true;
	pthread_mutex_unlock(&flusher->mutex);
}
