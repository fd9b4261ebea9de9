"""A reader of log entries made from PIP-160 alone, without Stilltide's code or protobuf."""


def records_of(entry: bytes) -> list[bytes]:
    """The records of an entry: magic, version, then repeated field 1; or the bare record."""
    if entry[:2] != b"\x0e\x01":
        return [entry]
    assert entry[2:4] == b"\x00\x01"
    records: list[bytes] = []
    at = 4
    while at < len(entry):
        assert entry[at] == 0x0A, "field 1, length-delimited"
        size = shift = 0
        while True:
            at += 1
            size |= (entry[at] & 0x7F) << shift
            shift += 7
            if entry[at] < 0x80:
                break
        records.append(entry[at + 1 : at + 1 + size])
        at += 1 + size
    assert at == len(entry)
    return records
