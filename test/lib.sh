# Shell functions that test/run and examples/demo share.  Source it from bash.
#
#	need PACKAGE...			installs the Debian packages that are missing
#	as_plain_user SCRIPT...	a cluster refuses to start as root: runs SCRIPT in a
#							copy of the tree as user postgres, and exits with its
#							status; does nothing for any other user
#	stage DIR [MAKE ARGS]	a PostgreSQL of our own in DIR, with idem in it
#	kafka_jars				prints the folder with Apache Kafka's jars
#	debezium_jars			the same of Debezium and Kafka Connect
#	hash_peers all|rust		prints the folder with other makers of canonical JSON
#	kafkajs					prints the folder with the Kafka client for Node
#	free_port				prints a TCP port that is free on 127.0.0.1
#
# Settings from outside: PG_CONFIG, IDEM_CACHE (folder for Kafka's jars and others),
# IDEM_KEEP=1 (keep the copy that as_plain_user makes), TMPDIR, NO_COLOR.

IDEM_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
KAFKA_VERSION=4.3.1
DEBEZIUM_VERSION=3.6.1.Final
KAFKAJS_VERSION=2.2.4

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
# What it takes to compare hashes with a second writer.
HASH_PACKAGES=(python3-psycopg)
# What it takes to fuzz: the clang of Debian 12, or of 13.
case $(sed -n 's/^VERSION_ID="\([0-9]*\).*/\1/p' /etc/os-release 2>/dev/null) in
	12) FUZZ_PACKAGES=(clang-14 libclang-rt-14-dev) ;;
	*) FUZZ_PACKAGES=(clang-19 libclang-rt-19-dev) ;;
esac

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

# Where something fetched is, or is to go.  A folder that root filled serves all.
# "stamp" is a file in it that says that it is complete.
cache_folder() {
	local name=$1 stamp=$2 shared=/var/cache/idem/$1

	if [ -n "${IDEM_CACHE:-}" ]; then
		printf '%s\n' "$IDEM_CACHE/$name"
	elif [ -r "$shared/$stamp" ] || [ "$(id -u)" -eq 0 ]; then
		printf '%s\n' "$shared"
	else
		printf '%s\n' "${XDG_CACHE_HOME:-$HOME/.cache}/idem/$name"
	fi
}

# Prints a folder of the cache, which "fetch FOLDER" fills when it is not there.
cached() {
	local folder=$1 stamp=$2
	shift 2

	if [ ! -r "$folder/$stamp" ]; then
		(
			umask 022
			mkdir -p "$folder"
			# Two runs at once: the second waits and finds it done.
			exec 9>"$folder/lock"
			flock 9
			[ -r "$folder/$stamp" ] || { "$@" && touch "$folder/$stamp"; }
		) || return
	fi
	printf '%s\n' "$folder"
}

kafka_folder() { cache_folder "kafka-$KAFKA_VERSION" complete; }

kafka_jars() {
	local folder

	folder=$(kafka_folder)
	cached "$folder" complete fetch_kafka "$folder"
}

debezium_jars() {
	local folder

	folder=$(cache_folder "debezium-$DEBEZIUM_VERSION" complete)
	cached "$folder" complete fetch_debezium "$folder"
}

kafkajs_folder() { cache_folder "kafkajs-$KAFKAJS_VERSION" complete; }

kafkajs() {
	local folder

	folder=$(kafkajs_folder)
	cached "$folder" complete fetch_kafkajs "$folder"
}

# The packages that Node takes, unless the machine has it from elsewhere.
node_packages() {
	command -v node >/dev/null || echo nodejs
	command -v npm >/dev/null || echo npm
}

fetch_kafkajs() {
	local folder=$1

	note "fetching kafkajs $KAFKAJS_VERSION into $folder"
	if ! npm install --silent --no-audit --no-fund --prefix "$folder" "kafkajs@$KAFKAJS_VERSION" \
		>"$folder/npm.log" 2>&1 </dev/null; then
		tail -n 20 "$folder/npm.log" >&2
		note "npm could not fetch kafkajs"
		return 1
	fi
}

fetch_kafka() {
	fetch_jars "$1" "Apache Kafka $KAFKA_VERSION" "org.apache.kafka:kafka_2.13:$KAFKA_VERSION" \
		"org.apache.kafka:kafka-tools:$KAFKA_VERSION" org.slf4j:slf4j-simple:1.7.36
}

# Debezium's connector and the Kafka Connect that runs it.
fetch_debezium() {
	fetch_jars "$1" "Debezium $DEBEZIUM_VERSION" "org.apache.kafka:connect-runtime:$KAFKA_VERSION" \
		"org.apache.kafka:connect-json:$KAFKA_VERSION" "org.apache.kafka:connect-transforms:$KAFKA_VERSION" \
		"io.debezium:debezium-connector-postgres:$DEBEZIUM_VERSION" \
		"io.debezium:debezium-embedded:$DEBEZIUM_VERSION" org.slf4j:slf4j-simple:1.7.36
}

# fetch_jars FOLDER WHAT ARTIFACT...	artifacts (group:name:version) and all that
#										they need
fetch_jars() {
	local folder=$1 what=$2 artifact group version
	shift 2

	note "fetching $what into $folder"
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
		note "maven could not fetch $what"
		return 1
	fi
}

# A folder for each state of test/hash/peers.
hash_peers_folder() {
	local state

	state=$(cd "$IDEM_ROOT/test/hash/peers" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum)
	cache_folder "hash-peers-${state:0:12}" "complete-$1"
}

# Packages to run the peers with and, when they are not there yet, to install them
# with; a cargo or an npm from elsewhere will do.
hash_peers_packages() {
	[ "$1" = rust ] || echo nodejs
	[ ! -r "$(hash_peers_folder "$1")/complete-$1" ] || return 0
	# Debian 12's cargo is too old for them; this one is kept up to date.
	command -v cargo >/dev/null || echo cargo-web
	[ "$1" = rust ] || echo python3-pip
	[ "$1" = rust ] || command -v npm >/dev/null || echo npm
}

# All of them, or the one that is written in Rust.
hash_peers() {
	local folder

	folder=$(hash_peers_folder "$1")
	cached "$folder" "complete-$1" fetch_hash_peers "$folder" "$1"
}

fetch_hash_peers() {
	note "fetching other makers of canonical JSON into $1"
	if ! "$IDEM_ROOT/test/hash/peers/install" "$@" >"$1/log" 2>&1 </dev/null; then
		tail -n 20 "$1/log" >&2
		note "could not install them"
		return 1
	fi
}

free_port() {
	perl -MIO::Socket::INET -e '
		my $socket = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1", LocalPort => 0)
			or die "no free port: $!\n";
		print $socket->sockport, "\n";'
}
