"""A shop whose sales are rows in PostgreSQL and records in Kafka, both or neither.

`python shop.py` sells without end, and dies at each tenth sale between the database's commit and
Kafka's; whatever starts it again lets it go on. `python shop.py check` compares rows and records.
"""

import os
import sys
import time

import psycopg
from confluent_kafka.admin import AdminClient, NewTopic  # pyright: ignore[reportPrivateImportUsage]

from stilltide.sync import Decisions, Subscription, TransactionClient

KAFKA, DATABASE = os.environ["KAFKA"], os.environ["DATABASE"]
TOPIC = "sales"
EACH_S = float(os.environ.get("SALE_EACH_S", "0.1"))
DIES_EACH = 10


def sell(db: psycopg.Connection, decisions: Decisions) -> None:
    """Sells without end."""
    with TransactionClient(KAFKA) as client:
        while True:
            with client.transaction(timeout_s=10) as txn:
                with db.transaction():  # the transaction of the database, inside
                    row = db.execute("INSERT INTO sales DEFAULT VALUES RETURNING number").fetchone()
                    assert row is not None, "the statement returns the number"
                    txn.send(TOPIC, b"%d" % row)
                    decisions.enlist(txn, db)
                if row[0] % DIES_EACH == 0:
                    print(f"sale {row[0]}: its row is committed; dying", flush=True)
                    os._exit(1)
            print(f"sale {row[0]}: {txn.state}", flush=True)
            time.sleep(EACH_S)


def check(db: psycopg.Connection) -> None:
    """Compares the rows with as many records."""
    rows = sorted(number for (number,) in db.execute("SELECT number FROM sales"))
    records: list[int] = []
    with Subscription(TOPIC, group="check", bootstrap_servers=KAFKA) as sales:
        while len(records) < len(rows):
            number = int(next(sales).value or b"")  # waits at a transaction that nobody has ended
            if number <= rows[-1]:  # the shop goes on
                records.append(number)
    same = sorted(records) == rows
    print(f"{len(rows)} rows, {len(records)} records, {'the same' if same else 'NOT the same'}")
    sys.exit(0 if same else 1)


def main() -> None:
    """Makes topic and tables, and does what the argument says."""
    admin = AdminClient({"bootstrap.servers": KAFKA})
    if TOPIC not in admin.list_topics(timeout=60).topics:
        admin.create_topics([NewTopic(TOPIC, 3)])[TOPIC].result()
    with (
        psycopg.connect(DATABASE, autocommit=True) as db,
        Decisions("shop-db", DATABASE) as decisions,
    ):
        db.execute("CREATE TABLE IF NOT EXISTS sales (number BIGSERIAL PRIMARY KEY)")
        decisions.create_table(db)
        if sys.argv[1:] == ["check"]:
            check(db)
        sell(db, decisions)


if __name__ == "__main__":
    main()
