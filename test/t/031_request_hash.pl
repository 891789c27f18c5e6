# What stands for a request: the cases of docs/request-hash.md, read from there,
# and requests drawn by lot, against a model of the selection in Perl and SQL's
# own idea of the array that is hashed.

use strict;
use warnings FATAL => 'all';
use utf8;

use Encode qw(decode_utf8 encode_utf8 encode);
use File::Basename;
use JSON::PP ();
use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;

use constant ROUNDS => 3000;

my $json = JSON::PP->new->canonical->allow_nonref;

# Names and strings in which a careless encoding of lists or strings would see
# something else, and characters that sort differently in UTF-8 and UTF-16.
my @names = ('a', 'b', '0', '1', '01', '-', '*', '', '/', '~', '~0', '~1', 'a/b', ',', '","', "\x{fb33}", "\x{1f602}", 'é');
my @strings = (@names, 'null', '[]', '["a"]', '{}', '1', '\\', '"', "\n", 'POST', 'exact', 'jcs', '",null,null,{}]');

my $node = Idem::Cluster->start_new('main', preload => 0);

# What the function says, and what it should: a hash in hexadecimal, or the
# SQLSTATE of an error.  The oracle gets the array as text.
$node->safe_psql('postgres', <<'END');
CREATE FUNCTION list(j jsonb) RETURNS text[] LANGUAGE sql AS
	$$ SELECT CASE WHEN jsonb_typeof(j) = 'array' THEN ARRAY(SELECT jsonb_array_elements_text(j)) END $$;
CREATE FUNCTION said(c jsonb, as_text boolean) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	body text := c->>'body';
BEGIN
	RETURN encode(CASE WHEN as_text
		THEN idem_request_hash(c->>'method', c->>'path', body, list(c->'include'), list(c->'exclude'), list(c->'optional'), c->>'mode')
		ELSE idem_request_hash(c->>'method', c->>'path', body::jsonb, list(c->'include'), list(c->'exclude'), list(c->'optional'), c->>'mode')
		END, 'hex');
EXCEPTION WHEN data_exception THEN
	RETURN SQLSTATE;
END $$;
CREATE FUNCTION oracle(frame text) RETURNS text LANGUAGE sql AS
	$$ SELECT encode(digest(convert_to(idem_canonical(frame::jsonb), 'UTF8'), 'sha256'), 'hex') $$;
END

documented_example();
documented_cases();
rfc6901();
drawn_by_lot();
other_encoding();
extremes();

$node->stop;
done_testing;

# Asks for many requests at once: { method, path, body (JSON text or undef),
# include, exclude, optional, mode } each, with what is expected: an SQLSTATE, or
# an array (as text).  Gives for each what was said of jsonb and of text, and what
# should have been.
sub ask
{
	my (@cases) = @_;
	my $sql = '';

	while (my @some = splice @cases, 0, 200)
	{
		my $data = $json->encode([ map { { %$_, expected => undef, frame => $_->{expected} =~ /^\[/ ? $_->{expected} : undef } } @some ]);
		$sql .= "SELECT said(c, false) || ' ' || said(c, true) || ' ' || coalesce(oracle(c->>'frame'), '')"
		  . " FROM jsonb_array_elements(\$data\$$data\$data\$) WITH ORDINALITY AS t(c, n) ORDER BY n;\n";
	}
	return map { [ split / /, $_, 3 ] } split /\n/, $node->safe_psql('postgres', encode_utf8($sql));
}

# The array that stands for a request; "selected" is JSON text, undef without a body.
sub frame
{
	my ($case, $selected) = @_;
	my @lists = map { $json->encode(sorted($case->{$_})) } qw(include exclude);

	return '["idem.request",1,' . join(',', (map { $json->encode($case->{$_}) } qw(mode method path)), @lists, $selected // ()) . ']';
}

# Without repeats, in the order of UTF-16 code units.
sub sorted
{
	my ($list) = @_;
	my %seen;

	return undef unless defined $list;
	return [ sort { encode('UTF-16BE', $a) cmp encode('UTF-16BE', $b) } grep { !$seen{$_}++ } @$list ];
}

sub document
{
	return decode_utf8(slurp_file(dirname(__FILE__) . '/../../docs/request-hash.md'));
}

# The cells of a table that has these columns, with JSON in code spans taken out
# of them.
sub table
{
	my (@columns) = @_;
	my $head = '| ' . join(' | ', @columns) . " |\n";
	my ($rows) = document() =~ /^\Q$head\E\|[- |]+\|\n((?:\|.*\n)+)/m;

	die "there is no table @columns\n" unless defined $rows;
	return map {
		my @cells = split /(?<!\\)\|/, $_ =~ s/^\|//r, -1;
		pop @cells;
		die "not as many cells as columns: $_\n" unless @cells == @columns;
		[ map { s/^\s+|\s+$//gr =~ s/^`(.*)`$/$1/sr =~ s/\\\|/|/gr } @cells ]
	} split /\n/, $rows;
}

# The first example and what it hashes.
sub documented_example
{
	my ($example) = document() =~ /^```sql\n(.*?);\n```$/ms;
	my ($array, $hash) = document() =~ /^ {4}(\["idem\.request",1,"exact".*\])\n {4}([0-9a-f]{64})$/m;

	is($node->value(encode_utf8("SELECT encode(($example), 'hex')")), $hash, 'the example has the hash that is told');
	is($node->value(encode_utf8("SELECT oracle('$array')")), $hash, 'which is that of the array that is told');
	return;
}

sub documented_cases
{
	my @cases;

	foreach my $row (table('Body', 'include', 'exclude', 'optional', 'Selected'))
	{
		my ($body, @lists) = @$row;
		my $selected = pop @lists;

		next if $body =~ /^\*.*\*$/;
		my %case = (method => 'POST', path => '/payments', mode => 'exact', body => $body eq 'none' ? undef : $body);
		@case{qw(include exclude optional)} = map { $_ eq '–' ? undef : $json->decode(encode_utf8($_)) } @lists;
		$case{expected} = $selected =~ /^22/ ? $selected : frame(\%case, $selected eq 'none' ? undef : $selected);
		$case{name} = join ' ', @$row;
		push @cases, \%case;
	}
	cmp_ok(scalar @cases, '>', 100, 'the table has cases');
	compare(@cases);
	return;
}

sub rfc6901
{
	my ($body) = document() =~ /^```json\n(.*?)^```$/ms;
	my @cases = map {
		my ($pointer, $selected) = @$_;
		my %case = (method => 'POST', path => '/', mode => 'exact', body => $body, exclude => undef, optional => undef,
			include => [ $json->decode($pointer) ]);
		+{ %case, name => "RFC 6901: $pointer", expected => frame(\%case, $selected =~ /^\{/ ? $selected : $body) }
	} table('Pointer', 'Selected');

	is(scalar @cases, 12, 'RFC 6901, section 5, has twelve examples');
	compare(@cases);
	return;
}

sub compare
{
	my (@cases) = @_;
	my @answers = ask(@cases);

	is(scalar @answers, scalar @cases, 'an answer to each');
	foreach my $i (0 .. $#cases)
	{
		my ($jsonb, $text, $oracle) = @{ $answers[$i] };
		my $expected = $cases[$i]{expected} =~ /^22/ ? $cases[$i]{expected} : $oracle;

		is("$jsonb $text", "$expected $expected", encode_utf8($cases[$i]{name}));
	}
	return;
}

# A database in whose encoding letters have another order: the same hash.
sub other_encoding
{
	my $hash = q{SELECT encode(idem_request_hash('POST', '/ю', BODY, '{/а,/ю/*/б,"~а"}', '{/б,/ю/0/а}', '{"~а"}'), 'hex')};
	my $body = q{'{"ю": [{"б": "\u0431", "а": 1}, {"б": "я"}], "а": "ю"}'};
	my @forms = map { encode_utf8($hash =~ s/BODY/$body$_/r) } '::text', '::jsonb';
	my $here = $node->value($forms[0]);

	$node->value(q{CREATE DATABASE koi8 ENCODING 'KOI8R' LOCALE 'C' TEMPLATE template0});
	$node->value('CREATE EXTENSION idem CASCADE', 'koi8');
	is($node->value("SET client_encoding = utf8; $_", 'koi8'), $here, 'the same hash in a database of another encoding') foreach @forms;
	is($node->value($forms[1]), $here, 'of jsonb and of text');
	return;
}

# Long and deep things end in an answer or an error, in no time to speak of.
sub extremes
{
	my %extremes = (
		'a pointer of a million tokens' => [ q{'{"a": 1}', ARRAY[repeat('/', 1000000)]}, '22035' ],
		'ten thousand pointers' => [ q{'{"a": 1}', ARRAY(SELECT 'p' || n FROM generate_series(1, 10000) AS n) || '{a}'::text[], '{}', ARRAY(SELECT 'p' || n FROM generate_series(1, 10000) AS n)}, '' ],
		'as deep a body as there may be, to its bottom' => [ q{repeat('[', 1000) || repeat(']', 1000), ARRAY[repeat('/0', 999)]}, '' ],
		'a deeper one' => [ q{repeat('[', 1001) || repeat(']', 1001), ARRAY[repeat('/0', 999)]}, '54001' ],
		'a jsonb deeper than that, to its bottom' => [ q{(repeat('[', 3000) || repeat(']', 3000))::jsonb, ARRAY[repeat('/*', 2999)]}, '54001' ],
		'many elements' => [ q{(SELECT jsonb_agg(jsonb_build_object('a', n, 'b', n)) FROM generate_series(1, 300000) AS n), '{/*/a}', '{/7,/*/c}'}, '' ],
		'more text than jsonb holds' => [ q{repeat(' ', 268435456) || '[1]', '{/0}'}, '54000' ]);

	foreach my $what (sort keys %extremes)
	{
		my ($arguments, $sqlstate) = @{ $extremes{$what} };
		my $answer = $node->try("SET statement_timeout = '60 s'; SELECT length(idem_request_hash('POST', '/', $arguments))");
		is("$answer->{sqlstate} $answer->{output}", $sqlstate ? "$sqlstate " : ' 32', $what) or diag(substr $answer->{error}, 0, 1000);
	}
	return;
}

#
# By lot
#

sub one_of { return $_[ rand @_ ] }

sub random_json
{
	my ($depth) = @_;
	my $what = rand;

	return { map { one_of(@names) => random_json($depth - 1) } 1 .. rand 4 } if $depth > 0 && $what < 0.5;
	return [ map { random_json($depth - 1) } 1 .. rand 4 ] if $depth > 0 && $what < 0.85;
	return one_of(one_of(@strings), int(rand 3), undef, JSON::PP::true, JSON::PP::false);
}

# A pointer, as a rule to something that is there.
sub random_pointer
{
	my ($value) = @_;
	my $pointer = '';

	if (rand() < 0.2)
	{
		my @plain = grep { $_ ne '' && !m{^/} } ref $value eq 'HASH' && rand() < 0.9 ? sort keys %$value : @names;
		return one_of(@plain) if @plain;
	}
	while (rand() < (ref $value ? 0.8 : 0.05))
	{
		my $token = ref $value eq 'HASH' && %$value ? one_of(sort keys %$value)
		  : ref $value eq 'ARRAY' && @$value ? int(rand @$value)
		  : one_of(@names);

		$token = one_of(@names) if rand() < 0.03;
		$value = ref $value eq 'HASH' ? $value->{$token} : ref $value eq 'ARRAY' && $token =~ /^\d+$/ ? $value->[$token] : undef;
		$pointer .= '/' . (rand() < 0.25 ? '*' : $token =~ s/~/~0/gr =~ s{/}{~1}gr);
	}
	return $pointer;
}

sub random_case
{
	my $body = rand() < 0.1 ? undef : random_json(4);
	my $none = rand() < 0.1;
	my %case = (
		method => one_of(@strings), path => one_of(@strings), mode => one_of('exact', 'jcs'),
		body => $none ? undef : $json->encode($body),
		include => rand() < 0.3 ? undef : [ map { random_pointer($body) } 1 .. rand 4 ],
		exclude => rand() < 0.4 ? undef : [ map { random_pointer($body) } 1 .. rand 3 ]);

	$case{optional} = rand() < 0.3 ? undef : [ grep { rand() < 0.8 } @{ $case{include} // [] } ];
	push @{ $case{optional} }, random_pointer($body) if rand() < 0.02;
	my ($error, $selected) = model(\%case, $body);
	$case{expected} = $error // frame(\%case, $none ? undef : $json->encode($selected));
	return \%case;
}

# The selection by its rules: places are lists of tokens, and each rule is a
# question about a place.  Gives an SQLSTATE or undef, and what is selected.
sub model
{
	my ($case, $body) = @_;
	my %include = map { $_ => 1 } @{ $case->{include} // [] };
	my %optional = map { $_ => 1 } @{ $case->{optional} // [] };
	my @include = map { parse($_) } @{ $case->{include} // [''] };
	my @exclude = map { parse($_) } @{ $case->{exclude} // [] };
	my $values = 0;

	return '22023' if grep { !$include{$_} } keys %optional;
	return $case->{include} ? '22035' : undef unless defined $case->{body};
	foreach my $pointer (keys %include)
	{
		return '22035' unless $optional{$pointer} || grep { fits(parse($pointer), $_) } places($body);
	}

	# What is left at a place, in a list; an empty list: nothing.
	my $left;
	$left = sub {
		my ($value, $kept, @place) = @_;
		my $selected = grep { my $up = $_; grep { fits($_, [ @place[ 0 .. $up - 1 ] ]) } @include } 0 .. @place;

		return if grep { fits($_, \@place) } @exclude;
		$values++ if $selected && (ref $value eq 'HASH' ? !%$value : ref $value eq 'ARRAY' ? !@$value : 1);
		if (ref $value eq 'HASH')
		{
			my %copy = map { my $name = $_; map { $name => $_ } $left->($value->{$name}, 0, @place, [ name => $name ]) } keys %$value;
			return %copy || $selected || $kept ? \%copy : ();
		}
		if (ref $value eq 'ARRAY')
		{
			my @on = map { $_->[@place] } grep { @$_ > @place && fits([ @$_[ 0 .. @place - 1 ] ], \@place) } @include;
			my $all = grep { $_->[0] eq 'all' } @on;
			my $chosen = grep { $_->[0] eq 'name' && $_->[1] =~ /^(?:0|[1-9][0-9]*)$/ } @on;
			my @copy = map { [ $left->($value->[$_], $all || ($kept && !$chosen), @place, [ index => $_ ]) ] } 0 .. $#$value;
			return (grep { @$_ } @copy) || $all || $selected || $kept ? [ map { $_->[0] } @copy ] : ();
		}
		return $selected || $kept ? $value : ();
	};
	my @root = $left->($body, 0);
	return '22035' unless @root && $values;
	return (undef, $root[0]);
}

# A pointer as a list of [ 'all' ], [ 'name', NAME ] or, for a plain name,
# [ 'member', NAME ].
sub parse
{
	my ($pointer) = @_;

	return [ [ member => $pointer ] ] if $pointer =~ m{^[^/]};
	return [ map { $_ eq '*' ? ['all'] : [ name => s/~1/\//gr =~ s/~0/~/gr ] } map { substr $_, 1 } $pointer =~ m{/[^/]*}g ];
}

# Whether a pointer leads to exactly this place.
sub fits
{
	my ($pointer, $place) = @_;

	return 0 unless @$pointer == @$place;
	foreach my $i (0 .. $#$place)
	{
		my ($kind, $name) = @{ $pointer->[$i] };
		my ($where, $value) = @{ $place->[$i] };

		next if $kind eq 'all';
		return 0 if $name ne $value || ($kind eq 'member' && $where eq 'index');
	}
	return 1;
}

# Every place in a value.
sub places
{
	my ($value, @place) = @_;

	return (
		\@place,
		ref $value eq 'HASH' ? map { places($value->{$_}, @place, [ name => $_ ]) } sort keys %$value
		: ref $value eq 'ARRAY' ? map { places($value->[$_], @place, [ index => $_ ]) } 0 .. $#$value
		: ());
}

sub drawn_by_lot
{
	my $seed = srand($ENV{IDEM_SEED} // time);
	my (@wrong, %seen, %hashes, %kinds);

	note("seed $seed");
	my @cases = map { random_case() } 1 .. ROUNDS;
	my @answers = ask(@cases);
	is(scalar @answers, ROUNDS, 'an answer to each request');
	foreach my $i (0 .. $#cases)
	{
		my ($case, $answer) = ($cases[$i], $answers[$i]);
		my ($jsonb, $text, $oracle) = @$answer;
		my $expected = $case->{expected} =~ /^22/ ? $case->{expected} : $oracle;

		push @wrong, "$jsonb $text, not $expected: " . $json->encode($case) unless $jsonb eq $expected && $text eq $expected;
		$kinds{ $case->{expected} =~ /^22/ ? $expected : 'hash' }++;
		next if $case->{expected} =~ /^22/;
		$seen{$jsonb}{ $case->{expected} } = 1;
		$hashes{ $case->{expected} }{$jsonb} = 1;
	}
	is(scalar @wrong, 0, "the selection and the array are those of the model (seed $seed)") or diag(encode_utf8(join "\n", @wrong[ 0 .. ($#wrong < 4 ? $#wrong : 4) ]));
	is(scalar(grep { keys %$_ > 1 } values %seen), 0, "no two arrays have one hash (seed $seed)");
	is(scalar(grep { keys %$_ > 1 } values %hashes), 0, "no array has two (seed $seed)");
	note(join ', ', map { "$_: $kinds{$_}" } sort keys %kinds);
	cmp_ok($kinds{$_} // 0, '>', ROUNDS / 100, "the lots have $_") foreach 22023, 22035, 'hash';
	cmp_ok(scalar keys %seen, '>', ROUNDS / 3, 'and many arrays');
	return;
}
