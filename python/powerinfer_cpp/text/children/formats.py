"""Formats of strings that are enforced, as patterns of ECMA-262.

What an RFC leaves without end has one here: 9 digits of a second's fraction and of each number of a
duration, 253 characters of a host's name.
"""

# ---- RFC 3339: dates, times, durations ----

_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DAYS = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?!0000)(?:[0-9]{{4}}-{_DAYS}|{_LEAP}-02-29)"
_HOUR = "(?:[01][0-9]|2[0-3])"
_FRACTION = r"(?:\.[0-9]{1,9})?"
# Seconds end with 60 where a second was inserted: at midnight in UTC.
_TIME = (
    f"(?:{_HOUR}:[0-5][0-9]:[0-5][0-9]{_FRACTION}(?:[Zz]|[+-]{_HOUR}:[0-5][0-9])"
    f"|23:59:60{_FRACTION}(?:[Zz]|[+-]00:00))"
)


def _in_turn(units: str) -> str:
    """Numbers with these units, none left out between two that are there."""
    *larger, last = units
    found = f"[0-9]{{1,9}}{last}"
    ways = [found]
    for unit in reversed(larger):
        found = f"[0-9]{{1,9}}{unit}(?:{found})?"
        ways.append(found)
    return f"(?:{'|'.join(reversed(ways))})"


_CLOCK = f"T{_in_turn('HMS')}"
_DURATION = f"P(?:{_in_turn('YMD')}(?:{_CLOCK})?|{_CLOCK}|[0-9]{{1,9}}W)"

# ---- Hosts: RFC 1123, RFC 2673, RFC 4291 ----

_LABEL = "[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_LAST_GROUPS = f"(?:{_GROUP}:{_GROUP}|{_IPV4})"


def _begun(most: int) -> str:
    """At most so many groups, before two colons."""
    return f"(?:(?:{_GROUP}:){{0,{most - 1}}}{_GROUP})?" if most else ""


_IPV6 = "|".join(
    [
        f"(?:{_GROUP}:){{6}}{_LAST_GROUPS}",
        *(f"{_begun(n)}::(?:{_GROUP}:){{{5 - n}}}{_LAST_GROUPS}" for n in range(6)),
        f"{_begun(6)}::{_GROUP}",
        f"{_begun(7)}::",
    ]
)

# ---- RFC 5321: mailboxes; RFC 3986: URIs ----

_ATOM = "[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_LOCAL = rf"(?:(?=[^@]{{1,64}}@){_ATOM}(?:\.{_ATOM})*|{_QUOTED})"
_MAILBOX = rf"{_LOCAL}@(?:{_HOST}|\[(?:{_IPV4}|IPv6:(?:{_IPV6}))\])"

_ENCODED = "%[0-9A-Fa-f]{2}"
_SAFE = "-0-9A-Za-z._~!$&'()*+,;="  # unreserved signs and those between parts
_SEGMENT = f"(?:[{_SAFE}:@]|{_ENCODED})"
_ADDRESS = rf"\[(?:{_IPV6}|[Vv][0-9A-Fa-f]+\.[{_SAFE}:]+)\]"
_AUTHORITY = f"(?:(?:[{_SAFE}:]|{_ENCODED})*@)?(?:{_ADDRESS}|(?:[{_SAFE}]|{_ENCODED})*)(?::[0-9]*)?"
_PATH = rf"(?:\/\/{_AUTHORITY}(?:\/{_SEGMENT}*)*|\/?(?:{_SEGMENT}+(?:\/{_SEGMENT}*)*)?)"
_FURTHER = rf"(?:{_SEGMENT}|[\/?])*"
_URI = rf"[A-Za-z][0-9A-Za-z+.-]*:{_PATH}(?:\?{_FURTHER})?(?:#{_FURTHER})?"

FORMATS = {
    name: f"^(?:{pattern})$"
    for name, pattern in {
        "date": _DATE,
        "time": _TIME,
        "date-time": f"{_DATE}[Tt]{_TIME}",
        "duration": _DURATION,
        "hostname": f"(?=[^]{{1,253}}$){_HOST}",
        "ipv4": _IPV4,
        "ipv6": _IPV6,
        "email": _MAILBOX,
        "uri": _URI,
        "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    }.items()
}
