//! Cases of lengths, masks and headers (RFC 6455 §5.1 to §5.3), as in Autobahn's category 1; and of message sizes
//! up to 64 KiB and of writes of any size, as in its category 9.
use crate::case::{Case, Expected, answer, ask, ask_of, chopped};
use crate::raw::{
    BINARY, BINARY_BEGINS, CLOSE, GOES_ON, LAST, PING, PONG, TEXT, TEXT_BEGINS, claiming, frame, masked, unmasked,
    widened,
};

/// Largest message in bytes.
const MOST: usize = 64 * 1024;
/// Lengths around every boundary of the length encoding, of a power of two, and of the node's buffers.
const LENGTHS: [usize; 22] = [
    40, 64, 65, 124, 125, 126, 127, 128, 129, 255, 256, 257, 1000, 1023, 1024, 1025, 8191, 8192, 16_384, 65_534,
    65_535, MOST,
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    lengths(&mut cases);
    masks(&mut cases);
    forms(&mut cases);
    cases
}

fn lengths(cases: &mut Vec<Case>) {
    for length in LENGTHS {
        let text = frame(TEXT, ask_of("r", length));
        cases.push(Case::new(format!("1.1 text of {length} bytes"), vec![text]).expects([answer("r")]));
    }
    // The server's answers have lengths too: these pass 125, 126 and 127.
    for length in (1..=100).step_by(3).chain([255, 256]) {
        let id = "i".repeat(length);
        let sent = vec![frame(TEXT, ask(&id))];
        cases.push(Case::new(format!("1.1 an answer with an id of {length} bytes"), sent).expects([answer(&id)]));
    }
    for (what, text) in [("nothing", ""), ("one byte", "1"), ("white space", "   ")] {
        let case = Case::new(format!("1.1 text of {what}"), vec![frame(TEXT, text)]);
        cases.push(case.expects([Expected::Error("invalid_message")]));
    }
    for length in [0, 1, 125, 126, 127, 128, 1024, 65_535, MOST] {
        let sent = vec![frame(BINARY, vec![0xfe; length])];
        cases.push(Case::new(format!("1.2 binary of {length} bytes"), sent).closed_with(1003));
    }
}

fn masks(cases: &mut Vec<Case>) {
    for mask in [[0; 4], [255; 4], [1, 0, 0, 0], [0, 0, 0, 1], [b'{', b'"', b't', b'y'], [0x81, 0xfe, 0x88, 0x80]] {
        for length in [40, 125, 126, 1001] {
            let sent = vec![masked(TEXT, ask_of("r", length), mask)];
            let name = format!("1.3 §5.3 {length} bytes behind the mask {mask:02x?}");
            cases.push(Case::new(name, sent).expects([answer("r")]));
        }
    }
    for (what, first) in [
        ("text", TEXT),
        ("binary", BINARY),
        ("a ping", PING),
        ("a pong", PONG),
        ("a close", CLOSE),
        ("a first piece", TEXT_BEGINS),
    ] {
        for payload in ["", "{}", &ask_of("r", 126)] {
            let name = format!("1.3 §5.1 {what} of {} bytes without a mask", payload.len());
            cases.push(Case::new(&name, vec![unmasked(first, payload)]).closed_with(1002));
            let case = Case::new(name + ", before hello", vec![unmasked(first, payload)]);
            cases.push(case.before_hello().closed_with(1002));
        }
    }
    let sent = vec![frame(TEXT_BEGINS, "{"), unmasked(LAST, "}")];
    cases.push(Case::new("1.3 §5.1 the second piece without a mask", sent).closed_with(1002));
    let sent = vec![[frame(TEXT, ask("r")), unmasked(TEXT, ask("s"))].concat()];
    cases.push(Case::new("1.3 §5.1 the second message without a mask", sent).expects([answer("r")]).closed_with(1002));
}

/// §5.2: a length uses the fewest bytes, and is never negative.
fn forms(cases: &mut Vec<Case>) {
    for (first, length, width) in [
        (TEXT, 40, 2),
        (TEXT, 125, 2),
        (TEXT, 40, 8),
        (TEXT, 125, 8),
        (TEXT, 126, 8),
        (TEXT, 65_535, 8),
        (BINARY, 5, 2),
        (BINARY, 5, 8),
        (PING, 5, 2),
        (PING, 5, 8),
        (PONG, 5, 2),
        (CLOSE, 2, 2),
        (CLOSE, 2, 8),
    ] {
        let payload = if first == TEXT { ask_of("r", length).into_bytes() } else { vec![3; length] };
        let name = format!("1.4 §5.2 {first:#x}: a length of {length} in {width} bytes");
        cases.push(Case::new(name, vec![widened(first, payload, width)]).closed_with(1002));
    }
    for length in [1 << 63, u64::MAX, (1 << 63) | 5] {
        for first in [TEXT, BINARY, TEXT_BEGINS] {
            let name = format!("1.4 §5.2 {first:#x}: a length of {length:#x}");
            cases.push(Case::new(name, vec![claiming(first, length, "{}")]).closed_with(1002));
        }
    }
}

/// Returns cases within the node's own limits and just beyond them.
pub(crate) fn limits() -> Vec<Case> {
    let mut cases = Vec::new();
    let too_large =
        |name: String, sent| Case::new(name, sent).expects([Expected::Error("too_large")]).closed_with(4413);
    for length in [MOST + 1, MOST + 2, 70_000, 128 * 1024] {
        cases.push(too_large(format!("9.1 text of {length} bytes"), vec![frame(TEXT, ask_of("r", length))]));
        cases.push(too_large(format!("9.2 binary of {length} bytes"), vec![frame(BINARY, vec![0; length])]));
    }
    for claim in [1 << 17, 1 << 20, 1 << 32, 1 << 40, (1 << 63) - 1] {
        let name = format!("9.1 text that claims {claim} bytes");
        cases.push(too_large(name, vec![claiming(TEXT, claim, "{}")]));
    }
    for pieces in [2, 4, 16, 32] {
        let text = ask_of("r", MOST);
        let sent = cut(text.as_bytes(), pieces);
        let name = format!("9.3 text of {MOST} bytes in {pieces} pieces");
        cases.push(Case::new(name, sent).expects([answer("r")]));
        let text = ask_of("r", MOST + 1);
        let name = format!("9.3 text of {} bytes in {pieces} pieces", text.len());
        cases.push(too_large(name, cut(text.as_bytes(), pieces)));
    }
    let first = frame(BINARY_BEGINS, vec![0; MOST]);
    cases.push(too_large("9.4 binary, too large in its second piece".into(), vec![first, frame(GOES_ON, "x")]));
    for step in [1, 2, 3, 7, 64, 1000, 1024, 1460, 65_536] {
        let length = if step < 64 { 2_000 } else { MOST };
        let sent = chopped(&frame(TEXT, ask_of("r", length)), step);
        let name = format!("9.5 text of {length} bytes, {step} at a time");
        cases.push(Case::new(name, sent).expects([answer("r")]));
    }
    for (count, length) in [(10, 40), (100, 40), (1000, 40), (100, 126), (40, 4096), (10, MOST)] {
        let id = |n: usize| format!("r{n}");
        let sent = (0..count).map(|n| frame(TEXT, ask_of(&id(n), length)));
        let (apart, together): (Vec<_>, Vec<_>) = (sent.clone().collect(), sent.flatten().collect());
        let heard = || (0..count).map(|n| answer(&id(n)));
        let name = format!("9.7 {count} texts of {length} bytes");
        cases.push(Case::new(name.clone() + ", one by one", apart).expects(heard()));
        cases.push(Case::new(name + ", all at once", vec![together]).expects(heard()));
    }
    cases
}

/// Splits a text into this many fragments.
pub(crate) fn cut(text: &[u8], pieces: usize) -> Vec<Vec<u8>> {
    assert!(text.len() >= pieces && pieces > 1, "{} bytes in {pieces} pieces", text.len());
    let step = text.len() / pieces;
    (0..pieces)
        .map(|n| {
            let end = if n + 1 == pieces { text.len() } else { (n + 1) * step };
            let first = match n {
                0 => TEXT_BEGINS,
                _ if n + 1 == pieces => LAST,
                _ => GOES_ON,
            };
            frame(first, &text[n * step..end])
        })
        .collect()
}
