# Nobody waits for a claim: sixteen sessions claim one key, in each isolation
# level, while another session leaves open whatever it was doing to the record.
# One of them ends up with the key, and no call takes longer than 200 ms by the
# client's own clock.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Wait;

use constant SESSIONS => 16;
use constant AT_ONCE_MS => 200;

my $node = Idem::Cluster->start_new('main', preload => 0);
my $winner = $node->session;
my @sessions = map { $node->session } 1 .. SESSIONS;
my $hash = "decode(repeat('01', 32), 'hex')";
my ($slowest, $calls) = (0, 0);

# A call that waits after all does so for ever.
$Idem::Wait::deadline = 10;
# psql says how long it waited for each answer.
$_->query('\timing on') foreach @sessions;

sub claim { return "SELECT outcome FROM idem_try_insert('p', '$_[0]', $hash, 'race'" . ($_[1] ? ", $_[1]" : '') . ')' }

# The owner's functions, for the attempt that the winner drew last.
sub own { return "SELECT * FROM $_[0]('p', '$_[1]', currval('idem.attempt')" . ($_[2] ? ", $_[2]" : '') . ')' }

# Sends the same statement to all sessions at once; outcomes or SQLSTATEs, counted.
sub all_hear
{
	my ($sql) = @_;
	my %heard;

	$_->send($sql) foreach @sessions;
	foreach my $session (@sessions)
	{
		my $answer = $session->answer;
		my ($ms) = $answer->{output} =~ /^Time: ([\d.]+) ms/m;

		$slowest = $ms if $ms > $slowest;
		$calls++;
		$heard{ $answer->{sqlstate} || ($answer->{output} =~ s/\n?Time: .*//sr) }++;
	}
	return \%heard;
}

# What the winner does before, what it leaves open, what others hear meanwhile,
# and the outcome of a claim that owns the key after its commit and its rollback
# ('' where nobody gets it).
my $over = "lease => '1 us'";
my $expired = "lease => '1 us', retention => '1 us'";
my %open = (
	'insert' => [ [], sub { claim($_[0]) }, 'IN_PROGRESS', '', 'STARTED' ],
	'take-over' => [ [ sub { claim($_[0], $over) } ], sub { claim($_[0]) }, 'IN_PROGRESS', '', 'RESUMED' ],
	'renewal of an expired record' => [ [ sub { claim($_[0], $expired) } ], sub { claim($_[0]) }, 'IN_PROGRESS', '', 'STARTED' ],
	'completion' => [ [ sub { claim($_[0]) } ], sub { own('idem_complete', $_[0], "201, '{}'::text") }, 'IN_PROGRESS', '', '' ],
	'late completion' => [ [ sub { claim($_[0], $over) } ], sub { own('idem_complete', $_[0], "201, '{}'::text") }, 'IN_PROGRESS', '', 'RESUMED' ],
	'call mark' => [ [ sub { claim($_[0], $over) } ], sub { own('idem_before_call', $_[0], "'1 h'") }, 'IN_PROGRESS', '', 'RESUMED' ],
	'yield' => [ [ sub { claim($_[0]) } ], sub { own('idem_yield', $_[0]) }, 'IN_PROGRESS', 'RESUMED', '' ],
	'mark as unknown' => [ [ sub { claim($_[0], $over) } ], sub { own('idem_mark_unknown', $_[0]) }, 'IN_PROGRESS', '', 'RESUMED' ],
	'verdict' => [
		[ sub { claim($_[0]) }, sub { own('idem_mark_unknown', $_[0]) } ],
		sub { "SELECT changed FROM idem_resolve('p', '$_[0]', 'completed', '{}', 201, '{}'::text)" },
		'UNKNOWN', '', ''
	],
	'claim by a sweeper' => [ [ sub { claim($_[0], $over) } ], sub { "SELECT outcome FROM idem_claim_stale('race')" }, 'IN_PROGRESS', '', 'RESUMED' ],
	'sweep' => [ [ sub { claim($_[0], $expired) } ], sub { 'SELECT records FROM idem_sweep()' }, 'IN_PROGRESS', 'STARTED', 'STARTED' ],
);

# One claim owns the key, or none; the others hear what they may.
sub check_owner
{
	my ($heard, $owner, $strict, $name) = @_;
	my %left = %$heard;
	my $owners = ($left{STARTED} // 0) + ($left{RESUMED} // 0);

	is($owners, $owner ? 1 : 0, "$name: " . ($owner ? 'one owner' : 'no owner'));
	is($heard->{$owner}, 1, "$name: it is $owner") if $owner;
	delete @left{qw(STARTED RESUMED IN_PROGRESS REPLAY UNKNOWN)};
	delete $left{'40001'} if $strict;
	is_deeply(\%left, {}, "$name: the others hear what they may");
	return;
}

foreach my $level ('read committed', 'repeatable read', 'serializable')
{
	my $strict = $level ne 'read committed';

	$_->query("SET default_transaction_isolation = '$level'") foreach @sessions;
	foreach my $what (sort keys %open)
	{
		my ($before, $open, $meanwhile, @owner) = @{ $open{$what} };

		foreach my $end ('COMMIT', 'ROLLBACK', 'COMMIT PREPARED', 'ROLLBACK PREPARED')
		{
			my $name = "$level, $what, $end";
			my $prepared = $end =~ /PREPARED/;

			$winner->query('DELETE FROM idem.idempotency');
			# Half of the sessions have looked before there was anything to see, and
			# the snapshot of the strict levels stays the one of then.
			$_->query('BEGIN; SELECT count(*) FROM idem.idempotency') foreach @sessions[ 0 .. SESSIONS / 2 - 1 ];
			$winner->query($_->('k')) foreach @$before;
			$winner->query('BEGIN');
			$winner->query($open->('k'));
			$winner->query("PREPARE TRANSACTION 'race'") if $prepared;

			my $heard = all_hear(claim('k'));
			my %other = %$heard;
			delete @other{ ($meanwhile, $strict ? qw(IN_PROGRESS 40001) : ()) };
			is_deeply(\%other, {}, "$name: meanwhile all hear $meanwhile" . ($strict ? ', IN_PROGRESS or 40001' : ''));
			$_->query('ROLLBACK') foreach @sessions[ 0 .. SESSIONS / 2 - 1 ];

			$winner->query($prepared ? "$end 'race'" : $end);
			check_owner(all_hear(claim('k')), $owner[ $end =~ /^COMMIT/ ? 0 : 1 ], $strict, $name);
		}
	}
}
cmp_ok($slowest, '<', AT_ONCE_MS, "the slowest of $calls calls took $slowest ms");

# The clock is right: whoever does wait is seen to.
$winner->query('BEGIN; LOCK TABLE idem.idempotency');
$sessions[0]->send("SET lock_timeout = '300 ms'; " . claim('control'));
like($sessions[0]->answer->{output}, qr/^Time: (?:[3-9]\d\d|\d{4,})\.\d+ ms/m, 'the clock of the sessions shows a wait');
$winner->query('ROLLBACK');

$_->quit foreach $winner, @sessions;
$node->stop;
done_testing;
