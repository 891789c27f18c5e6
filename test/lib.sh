# Shell functions that test/run and examples/demo share.  Source it from bash.
#
#	need PACKAGE...			installs the Debian packages that are missing
#	as_plain_user SCRIPT...	a cluster refuses to start as root: runs SCRIPT in a
#							copy of the tree as user postgres, and exits with its
#							status; does nothing for any other user
#	stage DIR [MAKE ARGS]	a PostgreSQL of our own in DIR, with idem in it
#	kafka_jars				prints the folder with Apache Kafka's jars
#	debezium_jars			the same of Debezium and Kafka Connect
#	free_port				prints a TCP port that is free on 127.0.0.1
#
# Settings from outside: PG_CONFIG, IDEM_CACHE (folder for jars),
# IDEM_KEEP=1 (keep the copy that as_plain_user makes), TMPDIR, NO_COLOR.

IDEM_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
KAFKA_VERSION=4.3.1
DEBEZIUM_VERSION=3.6.1.Final

# PostgreSQL 15 of Debian unless PG_CONFIG names another.
if [ -z "${PG_CONFIG:-}" ]; then
	PG_CONFIG=/usr/lib/postgresql/15/bin/pg_config
	PG_PACKAGES=(postgresql-15 postgresql-server-dev-15)
else
	PG_PACKAGES=()
fi
export PG_CONFIG

# What it takes to build idem, on top of PG_PACKAGES.
BUILD_PACKAGES=(build-essential pkg-config librdkafka-dev)
# What it takes to run Apache Kafka and to look into it.
KAFKA_PACKAGES=(openjdk-17-jre-headless maven kafkacat)
# What it takes to run the worked examples, which are in Python.
DEMO_PACKAGES=(python3-psycopg python3-confluent-kafka)
# What it takes to run the code of the README: SQL, Python and Java.
README_PACKAGES=(python3-psycopg openjdk-17-jdk-headless libpostgresql-jdbc-java)
# What stands between clients and the server in one of the tests.
POOLER_PACKAGES=(pgbouncer)

# Colours on a terminal only, so that output in a file or a pipe is plain.
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
	BOLD=$'\e[1m' DIM=$'\e[2m' RED=$'\e[31m' GREEN=$'\e[32m' YELLOW=$'\e[33m' BLUE=$'\e[34m' RESET=$'\e[0m'
else
	BOLD='' DIM='' RED='' GREEN='' YELLOW='' BLUE='' RESET=''
fi
export BOLD DIM RED GREEN YELLOW BLUE RESET

note() { printf '%s\n' "$*" >&2; }

die() {
	printf '%s%s%s\n' "$RED" "$*" "$RESET" >&2
	exit 1
}

# A package counts as there only when it is fully installed, not merely known.
is_installed() {
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

need() {
	local package missing=() sudo=()

	command -v dpkg-query >/dev/null ||
		die "this system has no dpkg; install what these Debian packages hold, and set PG_CONFIG: $*"
	for package in "$@"; do
		is_installed "$package" || missing+=("$package")
	done
	[ ${#missing[@]} -eq 0 ] && return

	if [ "$(id -u)" -ne 0 ]; then
		if ! sudo -n true 2>/dev/null; then
			die "some packages are missing; please run: sudo apt-get install ${missing[*]}"
		fi
		sudo=(sudo -n)
	fi
	note "installing ${missing[*]}"
	apt_install "${missing[@]}"
}

# Runs apt-get with the array "sudo" of need(); says what went wrong if it does.
apt_install() {
	local log
	local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y)

	log=$(mktemp)
	if ! { "${apt[@]}" update && "${apt[@]}" install --no-install-recommends "$@"; } >"$log" 2>&1 </dev/null; then
		tail -n 20 "$log" >&2
		rm -f "$log"
		die "could not install: $*"
	fi
	rm -f "$log"
}

# The files of the source tree, each ended by a zero byte: what git tracks or
# would add; without git everything but what a build or a test run leaves.
source_files() {
	cd "$IDEM_ROOT" || return
	if [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ]; then
		git ls-files -z --cached --others --exclude-standard |
			while IFS= read -r -d '' file; do
				# What git tracks may be deleted in the work tree.
				if [ -e "$file" ]; then printf '%s\0' "$file"; fi
			done
	else
		find . -name .git -prune -o -name tmp_check -prune -o -name output_iso -prune -o \
			-name results -prune -o -name .deps -prune -o \
			-type f ! -name '*.o' ! -name '*.so' ! -name '*.bc' -print0
	fi
}

# Copies the source tree into a folder; later copies keep what was built there.
copy_source() {
	source_files | tar -C "$IDEM_ROOT" --no-recursion --null -T - -cf - |
		tar -C "$1" --no-same-owner -xf -
}

as_plain_user() {
	local user=postgres base=${TMPDIR:-/tmp} copy status=0 script=$1
	shift

	[ "$(id -u)" -eq 0 ] || return 0
	id "$user" >/dev/null 2>&1 || die "there is no user $user to run a cluster as"
	runuser -u "$user" -- test -w "$base" -a -x "$base" || base=/tmp

	copy=$(mktemp -d "$base/idem.XXXXXX")
	copy_source "$copy"
	chown -R "$user": "$copy"
	# Not the caller's PATH: it may lead into folders that are closed to the user.
	(
		cd "$copy"
		exec runuser -u "$user" -- env HOME="$(getent passwd "$user" | cut -d: -f6)" \
			USER="$user" LOGNAME="$user" TMPDIR="$base" \
			PATH=/usr/sbin:/usr/bin:/sbin:/bin "./$script" "$@"
	) || status=$?

	if [ "$status" -eq 0 ] && [ -z "${IDEM_KEEP:-}" ]; then
		rm -rf "$copy"
	else
		note "${DIM}left for a look: $copy$RESET"
	fi
	exit "$status"
}

# PostgreSQL looks for its library and share folders relative to its
# executables.  So copied executables beside linked folders make an installation
# of our own, and nothing is installed into the system's.  Builds in a copy of
# the source as well (DIR/build).  Sets STAGE_BIN.  Calling it again brings the
# folder up to date.
stage() {
	local dir=$1 bindir folder
	shift

	mkdir -p "$dir/build"
	dir=$(cd "$dir" && pwd)
	bindir=$("$PG_CONFIG" --bindir)
	STAGE_BIN=$dir$bindir
	export STAGE_BIN
	if [ ! -x "$STAGE_BIN/postgres" ]; then
		mkdir -p "$STAGE_BIN"
		cp "$bindir"/* "$STAGE_BIN"
		for folder in "$("$PG_CONFIG" --pkglibdir)" "$("$PG_CONFIG" --sharedir)"; do
			mkdir -p "$dir$folder"
			cp -rsf "$folder/." "$dir$folder"
		done
		# An idem that the system has must not shine through.
		find "$dir" -type l \( -name 'idem*.so' -o -name 'idem--*.sql' -o -name 'idem.control' \
			-o -path '*/bitcode/idem*' \) -delete
	fi

	copy_source "$dir/build" || return
	make -s -j2 -C "$dir/build" PG_CONFIG="$PG_CONFIG" "$@" || return
	make -s -C "$dir/build" PG_CONFIG="$PG_CONFIG" DESTDIR="$dir" "$@" install
}

# jars NAME ARTIFACT... prints a folder with them and all that they need, fetched
# once.  A folder that root filled serves all.
jars() {
	local shared=/var/cache/idem/$1 folder

	if [ -n "${IDEM_CACHE:-}" ]; then
		folder=$IDEM_CACHE/$1
	elif [ -r "$shared/complete" ] || [ "$(id -u)" -eq 0 ]; then
		folder=$shared
	else
		folder=${XDG_CACHE_HOME:-$HOME/.cache}/idem/$1
	fi
	if [ ! -r "$folder/complete" ]; then
		(
			umask 022
			mkdir -p "$folder"
			# Two runs at once: the second waits and finds it done.
			exec 9>"$folder/lock"
			flock 9
			[ -r "$folder/complete" ] || fetch_jars "$folder" "$@"
		) || return
	fi
	printf '%s\n' "$folder"
}

# An artifact is group:name:version.
fetch_jars() {
	local folder=$1 name=$2 artifact group version
	shift 2

	note "fetching $name into $folder"
	{
		cat <<-POM
			<project xmlns="http://maven.apache.org/POM/4.0.0">
			  <modelVersion>4.0.0</modelVersion>
			  <groupId>idem</groupId>
			  <artifactId>jars-for-tests</artifactId>
			  <version>1</version>
			  <dependencies>
		POM
		for artifact in "$@"; do
			IFS=: read -r group artifact version <<<"$artifact"
			printf '    <dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>\n' \
				"$group" "$artifact" "$version"
		done
		printf '  </dependencies>\n</project>\n'
	} >"$folder/pom.xml"
	if ! mvn -q -B -f "$folder/pom.xml" dependency:copy-dependencies \
		-DoutputDirectory="$folder" >"$folder/maven.log" 2>&1 </dev/null; then
		tail -n 20 "$folder/maven.log" >&2
		note "maven could not fetch $name"
		return 1
	fi
	touch "$folder/complete"
}

kafka_jars() {
	jars "kafka-$KAFKA_VERSION" "org.apache.kafka:kafka_2.13:$KAFKA_VERSION" \
		"org.apache.kafka:kafka-tools:$KAFKA_VERSION" org.slf4j:slf4j-simple:1.7.36
}

# Debezium's connector and the Kafka Connect that runs it.
debezium_jars() {
	jars "debezium-$DEBEZIUM_VERSION" "org.apache.kafka:connect-runtime:$KAFKA_VERSION" \
		"org.apache.kafka:connect-json:$KAFKA_VERSION" "org.apache.kafka:connect-transforms:$KAFKA_VERSION" \
		"io.debezium:debezium-connector-postgres:$DEBEZIUM_VERSION" \
		"io.debezium:debezium-embedded:$DEBEZIUM_VERSION" org.slf4j:slf4j-simple:1.7.36
}

free_port() {
	perl -MIO::Socket::INET -e '
		my $socket = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1", LocalPort => 0)
			or die "no free port: $!\n";
		print $socket->sockport, "\n";'
}
