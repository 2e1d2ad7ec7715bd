"""Retry counts and RNR retry counts through a switch, beside the same without one: how often is tried is the initiator's
matter, and a switch in between neither adds a try nor takes one away."""

import signal

from harness import Case, Fail, compile_c, read_counters, require_text
from suite_observe import sample, scrape
from suite_switch import CAS, SERVER, Switch

MESSAGES = 8
# About 1 s: on a busy host nothing is sent again for the time that an answer takes.
PATIENT = ("-t", "18")
# By retry count, for what is never answered: 0.54 s in all. Silence of half a second is borne whatever the counts are.
HASTY = {0: ("-t", "17"), 7: ("-t", "14")}
SUCCESS, RETRY_EXC, RNR_EXC = 0, 12, 13
DIRECT, VIA, DECIDES = "direct", "through a switch", "through one that decides atomics"
WAYS = (DIRECT, VIA, DECIDES)


def counted_pair(room, way, label, target, client, is_lost=False, during=None):
    """What became of the client's messages: how many were done, the status of the first that was not, and its counters.
    `is_lost`: all that is sent to the target is lost. `during` is called with the target and the client as they run."""
    binary, counters = compile_c("retries"), room.path(f"{label}.counters")
    options = ("--trace", "--counters", counters, "--metrics", "0")
    if way == DIRECT:
        # The fault is the client's: what it gets is lost as well.
        how = {"server_address": "127.0.0.1", "client_address": "127.0.0.2", "server_options": ("--path", "udp"),
               "client_options": (*options, "--path", "udp", *(("--loss", "1.0") if is_lost else ()))}
    else:
        lost = f'[[port]]\naddress = "{SERVER}"\nfaults = {{ loss = 1.0, direction = "tx" }}\n' if is_lost else ""
        switch = Switch(room, lost + (CAS if way == DECIDES else ""))
        how = switch.ends()
        how["server_options"], how["client_options"] = how["options"], (*how["options"], *options)
    shared = ("-k", str(MESSAGES))
    server, asker = room.pair([binary, "target", *target, *shared], [binary, "client", *client, *shared], label=label, **how)
    if during:
        during(server, asker)
    room.all_succeed(server, asker)
    done, status = map(int, require_text(asker.output(), r"^done (\d+) status (\d+)$", label).groups())
    if way != DIRECT:
        if switch.show()["counters"]["rx_frames"] < (1 if is_lost else 2):
            raise Fail(f"{way}: the pair went past the switch")
        switch.proc.kill(signal.SIGTERM)
        room.expect_success(switch.proc)
    return done, status, read_counters(counters), asker.output()


def each_way(look):
    """`look(room, way, label)` says what came of it, which must be the same by each way."""

    def run(room):
        found = {way: look(room, way, f"way{at}-") for at, way in enumerate(WAYS)}
        if any(found[way] != found[DIRECT] for way in WAYS):
            raise Fail(f"not the same by each way: {found}")
        room.note(f"{found[DIRECT]} each way")

    return run


def expect(what, found, wanted):
    if found != wanted:
        raise Fail(f"{what}: done, status {found}, not {wanted}")


def not_ready(count):
    """A receiver that never is: after so many tries more the first message fails."""

    def look(room, way, label):
        client = ("-n", str(count), *PATIENT)
        done, status, counters, said = counted_pair(room, way, label, ("-m", "never"), client)
        expect(f"{way}, RNR retry count {count}", (done, status), (0, RNR_EXC))
        require_text(said, "completed with RnrRetryExceeded: the responder had no receive posted", "--trace")
        naks = counters["rnr_naks_received"]
        if naks != count + 1:
            raise Fail(f"{way}: {naks} RNR NAKs, not {count + 1}")
        return status, naks

    return each_way(look)


def late(room, way, label):
    """A receiver that is late for more tries than can be counted: 7 is for ever."""

    def during(server, client):
        url = room.wait_output(client, r"metrics at (http://\S+)").group(1)

        def has_tried():
            if client.popen.poll() is not None:
                raise Fail(f"{way}: the client ended with {client.popen.returncode} while its receiver was late")
            return sample(scrape(url)[1], "rnr_naks_received_total") > 2 * 7

        room.wait_until("RNR NAKs", has_tried)
        server.kill(signal.SIGUSR1)

    done, status, counters, _ = counted_pair(room, way, label, ("-m", "late"), ("-n", "7", *PATIENT), during=during)
    expect(f"{way}, RNR retry count 7", (done, status), (MESSAGES, SUCCESS))
    if counters["rnr_naks_received"] <= 2 * 7:
        raise Fail(f"{way}: {counters['rnr_naks_received']} RNR NAKs: nothing was shown")
    return done, status


def unheard(count):
    """Nothing arrives: the first message fails after the timeout and so many more."""

    def look(room, way, label):
        client = ("-r", str(count), "-w", *HASTY[count])
        done, status, counters, said = counted_pair(room, way, label, (), client, is_lost=True)
        expect(f"{way}, retry count {count}", (done, status), (0, RETRY_EXC))
        require_text(said, rf"completed with TransportRetryExceeded: .*ran out {count + 1} times$", "--trace")
        if counters["timeouts"] < count + 1:
            raise Fail(f"{way}: {counters['timeouts']} timeouts, not {count + 1}")
        return status, count + 1

    return each_way(look)


def no_retry(room, way, label):
    """Where nothing is lost, no retry is needed: neither for messages nor for WRITEs."""
    results = []
    for kind in ((), ("-w",)):
        client = ("-r", "0", "-n", "0", *kind, *PATIENT)
        done, status, counters, _ = counted_pair(room, way, f"{label}{len(kind)}-", (), client)
        expect(f"{way}, no retry", (done, status), (MESSAGES, SUCCESS))
        results.append((done, counters["retransmitted_packets"]))
    return results


def cases():
    for count in (0, 3):
        yield Case(f"switch/rnr-retry-{count}", not_ready(count), 60)
    yield Case("switch/rnr-retry-7", each_way(late), 60)
    for count in (0, 7):
        yield Case(f"switch/retry-{count}", unheard(count), 60)
    yield Case("switch/retry-0-unneeded", each_way(no_retry), 60)
