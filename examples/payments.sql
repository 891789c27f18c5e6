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
	offering_id		text NOT NULL,
	amount_cents	bigint NOT NULL CHECK (amount_cents > 0),
	currency		text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
	state			text NOT NULL CHECK (state IN ('PENDING', 'AUTHORIZED', 'DECLINED', 'UNKNOWN')),
	acquirer_ref	text
);
