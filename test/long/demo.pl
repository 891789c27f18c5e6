# examples/demo on a Kafka that is there already: it makes its topic, removes it
# again, and refuses a cluster where somebody else has it.

use strict;
use warnings FATAL => 'all';

use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Kafka;

my $topic = 'payments.payment-authorized';
my $kafka = Idem::Kafka->new;

sub demo
{
	my $said = '';
	my $done = IPC::Run::run([ 'examples/demo', '--kafka=' . $kafka->brokers ], '<', \undef, '>&', \$said, IPC::Run::timeout(300));

	note $said;
	return ($done, $said);
}

sub topics
{
	my $seen = '';

	IPC::Run::run([ 'kcat', '-L', '-b', $kafka->brokers ], '>', \$seen) or BAIL_OUT('kcat failed');
	return $seen;
}

my ($done, $said) = demo();
ok($done, 'the story is told, and its ledger is right');
like($said, qr/a Kafka that is there already, on \Q${\ $kafka->brokers}\E/, 'on the Kafka that was named');
unlike(topics(), qr/"\Q$topic\E"/, 'its topic is gone again');

$kafka->create_topic($topic, 1);
($done, $said) = demo();
ok(!$done, 'with another topic of that name there it fails');
like($said, qr/topic \Q$topic\E exists there already/, 'and says why');
like(topics(), qr/topic "\Q$topic\E" with 1 partitions/, 'the topic is left alone');

done_testing;
