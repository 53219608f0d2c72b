//! Cases of the close frame and the end of a connection (RFC 6455 §5.5.1, §7), as in Autobahn's category 7.
use crate::case::{Case, End, Expected, answer, ask, chopped};
use crate::raw::{CLOSE, GOES_ON, LAST, PING, PONG, TEXT, TEXT_BEGINS, close, frame, masked};

/// Codes that an endpoint may send: those of RFC 6455, those registered since, and the ranges of libraries and
/// applications (§7.4).
const RIGHT: [u16; 21] = [
    1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 3000, 3001, 3500, 3999, 4000, 4001, 4400, 4503,
    4998, 4999,
];
/// Codes that no endpoint may send: too small, reserved, undefined, or too large.
const WRONG: [u16; 25] = [
    0, 1, 2, 126, 500, 998, 999, 1004, 1005, 1006, 1015, 1016, 1017, 1099, 1100, 1999, 2000, 2500, 2998, 2999, 5000,
    5001, 9999, 32_768, 65_535,
];
/// Longest reason: a control frame has at most 125 bytes, two of them for the code.
const REASON_MOST: usize = 123;

fn says(code: u16, reason: impl Into<String>) -> End {
    End::ClosedSaying(code, reason.into())
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    plain(&mut cases);
    after(&mut cases);
    codes(&mut cases);
    reasons(&mut cases);
    cases
}

/// §5.5.1: a close frame is answered with a close frame of the same code.
fn plain(cases: &mut Vec<Case>) {
    let bare = || frame(CLOSE, "");
    for (what, sent) in [("whole", vec![bare()]), ("byte by byte", chopped(&bare(), 1))] {
        cases.push(Case::new(format!("7.3 a close without a code, {what}"), sent.clone()).ends(End::ClosedBare));
        let case = Case::new(format!("7.3 a close without a code before hello, {what}"), sent);
        cases.push(case.before_hello().ends(End::ClosedBare));
    }
    let sent = vec![frame(TEXT, ask("r")), close(1000, "bye")];
    cases.push(Case::new("7.1 a text and a close", sent.clone()).expects([answer("r")]).ends(says(1000, "bye")));
    let case = Case::new("7.1 a text and a close, all at once", vec![sent.concat()]);
    cases.push(case.expects([answer("r")]).ends(says(1000, "bye")));
    let sent = vec![frame(PING, "x"), close(1000, "")];
    let case = Case::new("7.1 a ping and a close", sent);
    cases.push(case.expects([Expected::Pong(b"x".to_vec())]).ends(says(1000, "")));
    for mask in [[0; 4], [255; 4]] {
        let sent = vec![masked(CLOSE, [&[3, 232][..], b"bye"].concat(), mask)];
        cases.push(Case::new(format!("7.1 a close behind the mask {mask:?}"), sent).ends(says(1000, "bye")));
    }
    for length in [1, 126, 127, 200, 65_536] {
        let sent = vec![frame(CLOSE, vec![3; length])];
        cases.push(Case::new(format!("7.3 a close of {length} bytes"), sent).closed_with(1002));
    }
}

/// §5.5.1: frames after a close frame are ignored, and none is sent after one.
fn after(cases: &mut Vec<Case>) {
    for (what, more) in [
        ("a close", close(1001, "again")),
        ("two closes", [close(1001, "again"), close(1002, "")].concat()),
        ("a ping", frame(PING, "x")),
        ("a pong", frame(PONG, "x")),
        ("a text", frame(TEXT, ask("r"))),
        ("a piece", frame(TEXT_BEGINS, "{")),
        ("what is no frame", vec![0xff; 100]),
        ("a text without a mask", vec![TEXT, 2, b'{', b'}']),
        ("a megabyte", frame(TEXT, ask("r")).repeat(26_000)),
    ] {
        let first = close(1000, "bye");
        let case = Case::new(format!("7.1 {what} after a close"), vec![first.clone(), more.clone()]);
        cases.push(case.ends(says(1000, "bye")));
        let case = Case::new(format!("7.1 {what} with a close"), vec![[first, more.clone()].concat()]);
        cases.push(case.ends(says(1000, "bye")));
        // The same holds after a close frame of the node.
        let failed = vec![[frame(TEXT | 0x70, "x"), more].concat()];
        cases.push(Case::new(format!("7.1 §7.1.7 {what} after a mistake"), failed).closed_with(1002));
    }
    let text = ask("r");
    let (left, right) = text.split_at(9);
    let sent = vec![frame(TEXT_BEGINS, left), close(1000, ""), frame(LAST, right), frame(PING, "x")];
    cases.push(Case::new("7.1 a close within a text, which goes on", sent).ends(says(1000, "")));
    let sent = vec![frame(TEXT_BEGINS, left), frame(GOES_ON, ""), close(4001, "bored")];
    cases.push(Case::new("7.1 a close within a text", sent).ends(says(4001, "bored")));
}

fn codes(cases: &mut Vec<Case>) {
    for code in RIGHT {
        let case = Case::new(format!("7.7 code {code}"), vec![close(code, "")]);
        cases.push(case.ends(says(code, "")));
        let case = Case::new(format!("7.7 code {code} with a reason"), vec![close(code, "because")]);
        cases.push(case.ends(says(code, "because")));
    }
    for code in WRONG {
        cases.push(Case::new(format!("7.9 code {code}"), vec![close(code, "")]).closed_with(1002));
        cases.push(Case::new(format!("7.9 code {code} with a reason"), vec![close(code, "because")]).closed_with(1002));
    }
    let case = Case::new("7.9 code 1005 before hello", vec![close(1005, "")]);
    cases.push(case.before_hello().closed_with(1002));
}

fn reasons(cases: &mut Vec<Case>) {
    for reason in ["x".to_owned(), "Hello World!".into(), "x".repeat(REASON_MOST), "κόσμε".into(), "𝄞".repeat(30)]
    {
        let name = format!("7.5 a reason of {} bytes", reason.len());
        cases.push(Case::new(name, vec![close(1000, &reason)]).ends(says(1000, reason)));
    }
    for length in [REASON_MOST + 1, REASON_MOST + 2, 1000] {
        let sent = vec![close(1000, "x".repeat(length))];
        cases.push(Case::new(format!("7.3 a reason of {length} bytes"), sent).closed_with(1002));
    }
    // §5.5.1, §8.1: a reason is UTF-8.
    for bytes in [
        &b"\xff"[..],
        b"\xce",
        b"abc\xed\xa0\x80",
        b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited",
        b"\xf4\x90\x80\x80",
        b"\xc0\x80",
    ] {
        let name = format!("7.5 a reason that is no UTF-8: {bytes:02x?}");
        cases.push(Case::new(name, vec![close(1000, bytes)]).closed_with(1007));
    }
}
