"""`stilltide audit`: one audit, and audits that go on."""
