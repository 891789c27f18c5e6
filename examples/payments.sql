-- The payment side: database "payments".
--
-- It shares no transaction with the enrollment side; all that goes from here to
-- there is the event "payments.payment-authorized".

CREATE EXTENSION idem CASCADE;

CREATE SCHEMA payments;

-- payment_id is the resource_id of the idempotency record.  It stays the same
-- over all attempts, so an attempt that resumes finds the row of the one before.
CREATE TABLE payments.payment (
	payment_id		uuid PRIMARY KEY,
	principal_id	text NOT NULL,
	idempotency_key	text NOT NULL,
	offering_id		text NOT NULL,
	amount_cents	bigint NOT NULL CHECK (amount_cents > 0),
	currency		text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
	state			text NOT NULL CHECK (state IN ('PENDING', 'AUTHORIZED', 'DECLINED', 'UNKNOWN')),
	acquirer_ref	text
);

-- Finds the payment of a key.  Not unique: the key may be used anew when its
-- record has expired, and the payments stay.
CREATE INDEX ON payments.payment (principal_id, idempotency_key);

-- The service claims, completes and emits, and reads nothing of idem's tables.
CREATE ROLE payments_service LOGIN;
SELECT idem_grant('application', 'payments_service');
GRANT USAGE ON SCHEMA payments TO payments_service;
GRANT SELECT, INSERT, UPDATE ON payments.payment TO payments_service;

-- Who settles what nobody could know: the program "resolve".
CREATE ROLE payments_operator LOGIN;
SELECT idem_grant('operator', 'payments_operator');
GRANT EXECUTE ON FUNCTION outbox_emit TO payments_operator;
GRANT USAGE ON SCHEMA payments TO payments_operator;
GRANT SELECT, UPDATE ON payments.payment TO payments_operator;
