//! Cases of pings and pongs (RFC 6455 §5.5.2, §5.5.3), as in Autobahn's category 2.
use crate::case::{Case, Expected, answer, ask, chopped};
use crate::raw::{GOES_ON, LAST, PING, PONG, TEXT, TEXT_BEGINS, frame};

/// Largest payload of a control frame in bytes.
const MOST: usize = 125;

fn pong(payload: impl AsRef<[u8]>) -> Expected {
    Expected::Pong(payload.as_ref().to_vec())
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    payloads(&mut cases);
    many(&mut cases);
    too_long(&mut cases);
    between(&mut cases);
    cases
}

fn payloads(cases: &mut Vec<Case>) {
    for (what, payload) in [
        ("Hello", b"Hello".to_vec()),
        ("bytes that are no text", vec![0x00, 0xff, 0xfe, 0xfd, 0xfc, 0xfb, 0x00, 0xff]),
        ("what looks like a frame", frame(TEXT, ask("r"))),
        ("125 times 0xfe", vec![0xfe; MOST]),
        ("125 zeros", vec![0; MOST]),
    ] {
        let sent = vec![frame(PING, &payload)];
        cases.push(Case::new(format!("2.2 a ping of {what}"), sent.clone()).expects([pong(&payload)]));
        let case = Case::new(format!("2.2 a ping of {what}, before hello"), sent).before_hello();
        cases.push(case.expects([pong(&payload)]));
        let sent = chopped(&frame(PING, &payload), 1);
        cases.push(Case::new(format!("2.6 a ping of {what}, byte by byte"), sent).expects([pong(&payload)]));
        let sent = vec![frame(PONG, &payload)];
        cases.push(Case::new(format!("2.8 a pong of {what} that nobody asked for"), sent));
    }
    for length in [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 31, 32, 63, 64, 100, 123, 124, 125] {
        let payload: Vec<u8> = (0..length).collect();
        let sent = vec![frame(PING, &payload)];
        cases.push(Case::new(format!("2.4 a ping of {length} bytes"), sent).expects([pong(&payload)]));
    }
    let sent = vec![frame(PONG, "x"), frame(PING, "y")];
    cases.push(Case::new("2.9 a pong that nobody asked for, then a ping", sent).expects([pong("y")]));
    let sent = vec![frame(PONG, ""); 1000];
    cases.push(Case::new("2.9 a thousand pongs that nobody asked for", vec![sent.concat()]));
}

fn many(cases: &mut Vec<Case>) {
    for count in [10, 100, 1000] {
        let payload = |n: usize| format!("ping {n}");
        let pings: Vec<_> = (0..count).map(|n| frame(PING, payload(n))).collect();
        let last = || Expected::PongsTo(payload(count - 1).into_bytes());
        let together = vec![pings.concat()];
        cases.push(Case::new(format!("2.10 {count} pings at once"), together).expects([last()]));
        if count < 1000 {
            let bytewise = chopped(&pings.concat(), 1);
            cases.push(Case::new(format!("2.11 {count} pings byte by byte"), bytewise).expects([last()]));
        }
    }
    let mut sent = Vec::new();
    let mut heard = Vec::new();
    for n in 0..50 {
        let id = format!("r{n}");
        sent.extend([frame(PING, &id), frame(TEXT, ask(&id)), frame(PONG, &id)].concat());
        heard.extend([pong(&id), answer(&id)]);
    }
    cases.push(Case::new("2.10 pings, messages and pongs by turns", vec![sent]).expects(heard));
}

/// §5.5: at most 125 bytes, and not fragmented.
fn too_long(cases: &mut Vec<Case>) {
    for length in [126, 127, 128, 1000, 65_535, 65_536, 100_000] {
        for (what, first) in [("ping", PING), ("pong", PONG)] {
            let sent = vec![frame(first, vec![0; length])];
            cases.push(Case::new(format!("2.5 a {what} of {length} bytes"), sent).closed_with(1002));
        }
    }
    for (what, first) in [("ping", PING), ("pong", PONG)] {
        let begins = first & 0x7f;
        for payload in ["", "x"] {
            let length = payload.len();
            let sent = vec![frame(begins, payload)];
            cases
                .push(Case::new(format!("2.5 a {what} of {length} bytes, not the last piece"), sent).closed_with(1002));
            let sent = vec![frame(begins, payload), frame(LAST, payload)];
            cases.push(Case::new(format!("2.5 a {what} of {length} bytes in two pieces"), sent).closed_with(1002));
            let sent = vec![frame(TEXT_BEGINS, "{"), frame(begins, payload), frame(LAST, "}")];
            let name = format!("2.5 a {what} of {length} bytes in two pieces, within a text");
            cases.push(Case::new(name, sent).closed_with(1002));
        }
    }
}

/// §5.4: control frames may come between the fragments of a message, and are answered there.
fn between(cases: &mut Vec<Case>) {
    let text = ask("r");
    let (left, right) = text.split_at(7);
    for payload in [&b""[..], b"Hello", &[0xff; MOST]] {
        let length = payload.len();
        let sent = vec![frame(TEXT_BEGINS, left), frame(PING, payload), frame(LAST, right)];
        let case = Case::new(format!("2.12 a ping of {length} bytes between two pieces"), sent.clone());
        cases.push(case.expects([pong(payload), answer("r")]));
        let case = Case::new(format!("2.12 a ping of {length} bytes between two pieces, byte by byte"), {
            chopped(&sent.concat(), 1)
        });
        cases.push(case.expects([pong(payload), answer("r")]));
        let case = Case::new(format!("2.12 a ping of {length} bytes, and the rest of the text is not there"), {
            vec![frame(TEXT_BEGINS, left), frame(PING, payload)]
        });
        cases.push(case.expects([pong(payload)]).then_sends(frame(LAST, right)).expects([answer("r")]));
        let sent = vec![frame(TEXT_BEGINS, left), frame(PONG, payload), frame(LAST, right)];
        let case = Case::new(format!("2.12 a pong of {length} bytes between two pieces"), sent);
        cases.push(case.expects([answer("r")]));
    }
    let mut sent = vec![frame(TEXT_BEGINS, "")];
    let mut heard = Vec::new();
    for n in 0..30 {
        sent.extend([frame(PING, format!("{n}")), frame(GOES_ON, &text[n..=n])]);
        heard.push(pong(format!("{n}")));
    }
    sent.push(frame(LAST, &text[30..]));
    heard.push(answer("r"));
    cases.push(Case::new("2.12 a ping between each two of 32 pieces", sent).expects(heard));
}
