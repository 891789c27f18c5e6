# A real Apache Kafka (KRaft: broker and controller in one process) on free ports
# of 127.0.0.1, with its data in a temporary folder: one node, or three.
#
#	my $kafka = Idem::Kafka->new;		started, ready, no topics
#	$kafka->brokers						"127.0.0.1:PORT", the same over restarts
#	$kafka->create_topic('t', 3, 'max.message.bytes' => 1000)
#	$kafka->delete_topic('t')
#	$kafka->stop; $kafka->kill9; $kafka->start
#	$kafka->freeze; $kafka->thaw		SIGSTOP and SIGCONT
#
#	my $kafka = Idem::Kafka->new(nodes => 3);
#	$kafka->leader('t', 0)				node that leads a partition: 1, 2 or 3
#	$kafka->kill9(2)					one node; so do stop, start, freeze, thaw
#
#	my $kafka = Idem::Kafka->new(acl => 1);
#	$kafka->deny('Write', 't'); $kafka->allow('Write', 't')
#
# Options of new: start => 0, conf => "lines of server.properties", cpu => 1
# (compiles as a server in production does: for runs of minutes).
#
# The environment variable IDEM_KAFKA_JARS names the folder with Kafka's jars.

package Idem::Kafka;

use strict;
use warnings FATAL => 'all';

use Carp qw(croak);
use File::Basename qw(basename);
use IPC::Run ();
use POSIX qw(WNOHANG);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

use Idem::Wait;

my @all;

# Small and quick to start: these brokers live for seconds.
my @java = qw(java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx512m);
my @server_java = qw(java -Xmx1g);

sub new
{
	my ($class, %options) = @_;
	my $number = scalar @all;
	my $self = bless { java => $options{cpu} ? \@server_java : \@java }, $class;

	croak 'IDEM_KAFKA_JARS is not set: run the tests with test/run'
	  unless $ENV{IDEM_KAFKA_JARS};
	push @all, $self;
	foreach my $id (1 .. $options{nodes} // 1)
	{
		$self->{nodes}{$id} = {
			port => PostgreSQL::Test::Cluster::get_free_port(),
			controller_port => PostgreSQL::Test::Cluster::get_free_port(),
			folder => PostgreSQL::Test::Utils::tempdir('kafka'),
			log => $PostgreSQL::Test::Utils::log_path . '/'
			  . basename($0, '.pl') . "_kafka_$number" . ($id > 1 ? "_$id" : '') . '.log',
		};
	}
	$self->_configure($_, %options) foreach $self->_ids;
	$self->_format($_) foreach $self->_ids;
	$self->start unless defined $options{start} && !$options{start};
	return $self;
}

sub _ids
{
	my ($self) = @_;
	my @ids = sort keys %{ $self->{nodes} };

	return @ids;
}

# Where clients go; without a node that is down when a tool is to use them.
sub brokers
{
	my ($self) = @_;

	return join ',', map { "127.0.0.1:$self->{nodes}{$_}{port}" } $self->_ids;
}

sub port { return $_[0]->{nodes}{ $_[1] // 1 }{port} }
sub pid { return $_[0]->{nodes}{ $_[1] // 1 }{pid} }

# The nodes a method is about: the one named, or all.
sub _chosen
{
	my ($self, $id) = @_;

	return defined $id ? ($id) : $self->_ids;
}

sub start
{
	my ($self, $id) = @_;
	my @started = $self->_chosen($id);

	foreach my $node (map { $self->{nodes}{$_} } @started)
	{
		croak 'Kafka is running already' if $node->{pid};
		$node->{pid} = $self->_spawn($node, 'kafka.Kafka', $node->{properties});
	}
	wait_until(
		'Kafka is ready',
		sub {
			foreach my $node (map { $self->{nodes}{$_} } @started)
			{
				croak "Kafka ended at start, see $node->{log}" unless _alive($node);
			}
			return $self->_answers;
		});
	return;
}

# Ends it properly, as an operator does.
sub stop { return $_[0]->_end('TERM', $_[1]) }

# Ends it as a power failure does.
sub kill9 { return $_[0]->_end('KILL', $_[1]) }

sub freeze { return $_[0]->_signal('STOP', $_[1]) }
sub thaw { return $_[0]->_signal('CONT', $_[1]) }

sub _signal
{
	my ($self, $signal, $id) = @_;

	kill $signal, $self->{nodes}{$_}{pid} foreach $self->_chosen($id);
	return;
}

# As many replicas as there are nodes.
sub create_topic
{
	my ($self, $topic, $partitions, %settings) = @_;

	$self->administrate('create', $topic, $partitions // 1, scalar $self->_ids,
		map { "$_=$settings{$_}" } sort keys %settings);
	wait_until(
		"topic $topic has leaders",
		sub {
			my $seen = $self->_metadata;
			return ($seen =~ /topic "\Q$topic\E" with/ && $seen !~ /leader -1|Leader not available/, $seen);
		});
	return;
}

sub delete_topic
{
	my ($self, $topic) = @_;

	$self->administrate('delete', $topic);
	wait_until("topic $topic is gone",
		sub { my $seen = $self->_metadata; return ($seen !~ /topic "\Q$topic\E"/, $seen) });
	return;
}

# Changes settings of a topic.
sub configure_topic
{
	my ($self, $topic, %settings) = @_;

	$self->administrate('set', $topic, map { "$_=$settings{$_}" } sort keys %settings);
	return;
}

# Takes a right on a topic from everybody, and gives it back.  (Needs acl => 1;
# what no rule is about is allowed.)
sub deny { return $_[0]->administrate('deny', $_[1], $_[2]) }
sub allow { return $_[0]->administrate('allow', $_[1], $_[2]) }

# Has test/clients/Administrate.java carry out a command.
sub administrate
{
	my ($self, @words) = @_;
	my $admin = $self->{admin} //= $self->_start_admin;

	$admin->{in} .= "@words\n";
	$admin->{timer}->start($Idem::Wait::deadline);
	while ($admin->{out} !~ /\n/)
	{
		eval { $admin->{process}->pump; 1 } or croak "\"@words\" was not answered: $@";
	}
	$admin->{timer}->reset;
	my ($answer) = $admin->{out} =~ /^(.*)\n/;
	$admin->{out} = '';
	croak "\"@words\" failed: $answer" unless $answer eq 'ok';
	return;
}

sub _start_admin
{
	my ($self) = @_;
	my $admin = { in => '', out => '', timer => IPC::Run::timeout($Idem::Wait::deadline, name => 'deadline') };

	$admin->{process} = IPC::Run::start(
		[
			'setpriv', '--pdeathsig', 'KILL', @java, '-Dorg.slf4j.simpleLogger.defaultLogLevel=error',
			_jars(), 'test/clients/Administrate.java', $self->brokers
		],
		'<', \$admin->{in}, '>', \$admin->{out}, '2>>', $self->{nodes}{1}{log}, $admin->{timer});
	return $admin;
}

# Writes [key, value] pairs with Kafka's own Java producer.
sub produce_with_java
{
	my ($self, $topic, @pairs) = @_;

	$self->_tool_with(
		join('', map { "$_->[0]\t$_->[1]\n" } @pairs),
		'org.apache.kafka.tools.ConsoleProducer',
		'--bootstrap-server', $self->brokers, '--topic', $topic, '--reader-property', 'parse.key=true');
	return;
}

# Runs a Java program of test/clients, from its source; gives what it printed.
sub run_java
{
	my ($self, $program, @arguments) = @_;
	my ($output, $errors) = ('', '');

	IPC::Run::run(
		[ @java, '-Dorg.slf4j.simpleLogger.defaultLogLevel=error', _jars(), "test/clients/$program.java", @arguments ],
		'<', \undef, '>', \$output, '2>', \$errors, IPC::Run::timeout($Idem::Wait::deadline))
	  or croak "$program failed: $errors";
	return $output;
}

# The node that leads a partition.
sub leader
{
	my ($self, $topic, $partition) = @_;
	my ($part) = $self->_metadata =~ /topic "\Q$topic\E" with(.*?)(?:\n  topic|\z)/s;

	return ($part // '') =~ /partition $partition, leader (\d+)/ ? $1 : croak "nobody leads $topic/$partition";
}

# auto.create.topics.enable is off: an event for a topic that is not there must
# not bring it into being.  The session is short because after kill9 the
# controller lets the broker in again only when the old session is over.
sub _configure
{
	my ($self, $id, %options) = @_;
	my $node = $self->{nodes}{$id};
	my $copies = scalar $self->_ids;
	my $in_sync = $copies > 1 ? 2 : 1;
	my $voters = join ',', map { "$_\@127.0.0.1:$self->{nodes}{$_}{controller_port}" } $self->_ids;

	$node->{properties} = "$node->{folder}/server.properties";
	PostgreSQL::Test::Utils::append_to_file($node->{properties}, <<EOF_PROPERTIES);
process.roles=broker,controller
node.id=$id
controller.quorum.voters=$voters
listeners=BROKER://127.0.0.1:$node->{port},CONTROLLER://127.0.0.1:$node->{controller_port}
advertised.listeners=BROKER://127.0.0.1:$node->{port}
listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=BROKER
controller.listener.names=CONTROLLER
log.dirs=$node->{folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=$copies
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=$copies
transaction.state.log.min.isr=$in_sync
min.insync.replicas=$in_sync
group.initial.rebalance.delay.ms=0
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=2000
EOF_PROPERTIES
	PostgreSQL::Test::Utils::append_to_file($node->{properties}, <<EOF_PROPERTIES) if $options{acl};
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
EOF_PROPERTIES
	PostgreSQL::Test::Utils::append_to_file($node->{properties}, $options{conf}) if $options{conf};
	return;
}

sub _format
{
	my ($self, $id) = @_;

	# Any 22 letters are a cluster id.
	$self->_tool('kafka.tools.StorageTool', 'format', '-t',
		'idem-tests-cluster-001', '-c', $self->{nodes}{$id}{properties});
	return;
}

sub _jars { return ('-cp', "$ENV{IDEM_KAFKA_JARS}/*") }

# Runs a tool of Kafka to its end; its output goes to the log.
sub _tool
{
	my ($self, @command) = @_;

	return $self->_tool_with('', @command);
}

sub _tool_with
{
	my ($self, $input, @command) = @_;
	my $output = '';
	my $done = IPC::Run::run(
		[ @java, '-Dorg.slf4j.simpleLogger.defaultLogLevel=warn', _jars(), @command ],
		'<', \$input, '>&', \$output, IPC::Run::timeout($Idem::Wait::deadline));

	PostgreSQL::Test::Utils::append_to_file($self->{nodes}{1}{log}, $output);
	croak "@command failed: $output" unless $done;
	return;
}

# The kernel ends the broker when this process ends, however that happens.
sub _spawn
{
	my ($self, $node, @command) = @_;
	my $pid = fork // croak "fork: $!";

	return $pid if $pid;
	open STDIN, '<', '/dev/null' or POSIX::_exit(127);
	open STDOUT, '>>', $node->{log} or POSIX::_exit(127);
	open STDERR, '>&', \*STDOUT or POSIX::_exit(127);
	exec 'setpriv', '--pdeathsig', 'KILL', @{ $self->{java} }, _jars(), @command
	  or POSIX::_exit(127);
}

sub _alive
{
	my ($node) = @_;

	return waitpid($node->{pid}, WNOHANG) == 0;
}

# What kcat tells of the cluster; empty when it gets no answer.
sub _metadata
{
	my ($self) = @_;
	my $output = '';

	IPC::Run::run([ 'kcat', '-L', '-m', 5, '-b', $self->brokers ],
		'<', \undef, '>', \$output, '2>', '/dev/null');
	return $output;
}

# Ready means: all nodes that run are there, and each partition is led.
sub _answers
{
	my ($self) = @_;
	my $running = grep { $_->{pid} } values %{ $self->{nodes} };
	my $seen = $self->_metadata;

	return ($seen =~ /^ $running brokers:/m && $seen !~ /leader -1|Leader not available/, $seen);
}

sub _end
{
	my ($self, $signal, $id) = @_;

	my @ending = grep { $_->{pid} } map { $self->{nodes}{$_} } $self->_chosen($id);

	# A frozen process takes SIGTERM only once it goes on.
	kill($signal, $_->{pid}) && kill 'CONT', $_->{pid} foreach @ending;
	foreach my $node (@ending)
	{
		my $pid = delete $node->{pid};

		wait_until("Kafka ends after SIG$signal", sub { return waitpid($pid, WNOHANG) != 0 });
	}
	return;
}

END
{
	my $status = $?;

	$_->{admin} && $_->{admin}{process}->kill_kill foreach @all;
	$_->kill9 foreach @all;
	$? = $status;
}

1;
