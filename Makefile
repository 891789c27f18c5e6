# Makefile of the extension idem.
#
# Builds two libraries: idem (src/: SQL functions, settings, shared memory) and,
# through bgworker/Makefile, idem_relay (the worker, the only part that links
# librdkafka).  PG_CONFIG chooses the server; IDEM_TEST=1 makes the test build,
# which has named points where the worker or a function can be made to stop.

EXTENSION = idem
DATA = $(wildcard sql/idem--*.sql)
PGFILEDESC = "idem - one charge, one seat, one receipt"

MODULE_big = idem
OBJS = \
	src/canonical.o \
	src/idem.o \
	src/idem_args.o \
	src/idem_claim.o \
	src/idem_guc.o \
	src/idem_hash.o \
	src/idem_headers.o \
	src/idem_inbox.o \
	src/idem_key.o \
	src/idem_note.o \
	src/idem_outbox.o \
	src/idem_owner.o \
	src/idem_relay_status.o \
	src/idem_shmem.o \
	src/idem_sweep.o \
	src/idem_topic.o \
	src/idem_uuid.o \
	src/record_answer.o \
	src/record_rules.o \
	src/record_store.o \
	src/record_valid.o

REGRESS = $(patsubst test/sql/%.sql,%,$(sort $(wildcard test/sql/*.sql)))
REGRESS_OPTS = --inputdir=test --encoding=UTF8 --no-locale
ISOLATION = $(patsubst test/isolation/specs/%.spec,%,$(sort $(wildcard test/isolation/specs/*.spec)))
ISOLATION_OPTS = --inputdir=test/isolation

PG_CONFIG ?= pg_config

# The server's headers are not ours to warn about.
PG_CPPFLAGS = -isystem $(shell $(PG_CONFIG) --includedir-server)
PG_CFLAGS = -Wall -Wextra -Werror

ifdef IDEM_TEST
PG_CPPFLAGS += -DIDEM_TEST
OBJS += src/idem_test.o
endif

PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# No dependency tracking in PGXS: a changed header rebuilds what may use it.
$(OBJS): $(wildcard src/*.h)

.PHONY: relay install-relay uninstall-relay clean-relay demo test

all: relay
relay:
	$(MAKE) -C $(srcdir)/bgworker all

install: install-relay
install-relay:
	$(MAKE) -C $(srcdir)/bgworker install

uninstall: uninstall-relay
uninstall-relay:
	$(MAKE) -C $(srcdir)/bgworker uninstall

clean: clean-relay
clean-relay:
	$(MAKE) -C $(srcdir)/bgworker clean

# The two commands of the README.
demo:
	$(srcdir)/examples/demo
test:
	$(srcdir)/test/run
