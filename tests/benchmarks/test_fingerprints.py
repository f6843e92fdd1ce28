"""The list of fingerprints has a case that every registered attack can read."""

from fedre_privacy.attacks.base import attacks
from fedre_privacy.core.artifacts import is_read_as
from fedre_privacy.protocols.base import protocols
from fedre_privacy.threats.base import threats


def unfit(name, how):
    """Why an attack cannot run in its case; empty where it can."""
    attack, protocol = attacks.get(name), protocols.get(how.get("protocol", "fedre"))
    threat = threats.get(how.get("threat", "fedre-paper"))
    if not any(is_read_as(kind, attack.consumes) for kind in protocol.uploads):
        return f"{protocol.name} uploads nothing that it reads"
    absent = attack.needs - threat.grants
    return f"{threat.name} does not grant {sorted(absent)}" if absent else ""


def test_every_attack_can_run_in_its_case(load):
    fingerprints = load("fingerprints")
    cases = list(fingerprints.asked())
    assert {name for _, name, _ in cases} | fingerprints.ELSEWHERE == set(attacks.names())
    assert {case: why for case, name, how in cases if (why := unfit(name, how))} == {}
    assert unfit("alignment", {}) and unfit("shadow", {"threat": "realistic"})
