//! Cases of UTF-8 text (RFC 6455 §5.6, §8.1), as in Autobahn's category 6: in one frame, in fragments that split a
//! character, and byte by byte. A message that cannot become valid UTF-8 fails with the frame that shows this.
use crate::case::{Case, Expected, answer, ask, chopped};
use crate::framing::cut;
use crate::raw::{GOES_ON, LAST, TEXT, TEXT_BEGINS, frame};
use crate::utf8::{invalid, noncharacters, valid};

/// A message around the tested bytes, in two halves.
const BEFORE: &[u8] = br#"{"type":"ping","request_id":"r","x":""#;
const AFTER: &[u8] = br#""}"#;
/// Largest number of fragments of one message.
const PIECES_MOST: usize = 32;

fn around(bytes: &[u8]) -> Vec<u8> {
    [BEFORE, bytes, AFTER].concat()
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    right(&mut cases);
    wrong(&mut cases);
    fast(&mut cases);
    cases
}

fn right(cases: &mut Vec<Case>) {
    for (group, text) in valid().into_iter().chain(noncharacters()) {
        let name = format!("{group} {}", text.escape_unicode());
        let bytes = text.as_bytes();
        let whole = || Case::new(name.clone(), vec![frame(TEXT, around(bytes))]);
        cases.push(whole().expects([answer("r")]));
        // Each byte of the characters in a fragment of its own, or as many bytes as the fragment limit needs.
        let step = bytes.len().div_ceil(PIECES_MOST - 2);
        let mut sent = vec![frame(TEXT_BEGINS, BEFORE)];
        sent.extend(bytes.chunks(step).map(|piece| frame(GOES_ON, piece)));
        sent.push(frame(LAST, AFTER));
        cases.push(Case::new(format!("{name}, cut"), sent.clone()).expects([answer("r")]));
        let sent = chopped(&sent.concat(), 1);
        cases.push(Case::new(format!("{name}, cut, byte by byte"), sent).expects([answer("r")]));
    }
    for id in ["κόσμε", "Hellö-µ@ßöäüàá-UTF-8!!", "日本語テキスト", "𝄞𠜎😀", "\u{e000}\u{fffd}\u{10ffff}"]
    {
        let sent = vec![frame(TEXT, ask(id))];
        cases.push(Case::new(format!("6.2 an answer with the id {id}"), sent).expects([answer(id)]));
        let sent = cut(ask(id).as_bytes(), 20);
        cases.push(Case::new(format!("6.2 an answer with the id {id}, cut"), sent).expects([answer(id)]));
    }
    // Valid text that is no valid message.
    for text in ["\0", "\u{7f}", "\u{1}\u{1f}", "\u{feff}{}", "κόσμε"] {
        let case = Case::new(format!("6.5 a text of {} alone", text.escape_unicode()), vec![frame(TEXT, text)]);
        cases.push(case.expects([Expected::Error("invalid_message")]));
    }
}

fn wrong(cases: &mut Vec<Case>) {
    for (group, bytes) in invalid() {
        let name = format!("{group} {bytes:02x?}");
        cases.push(Case::new(name.clone(), vec![frame(TEXT, around(&bytes))]).closed_with(1007));
        cases.push(Case::new(format!("{name} alone"), vec![frame(TEXT, &bytes)]).closed_with(1007));
        let sent = vec![frame(TEXT_BEGINS, [BEFORE, &bytes].concat()), frame(LAST, AFTER)];
        cases.push(Case::new(format!("{name} in the first of two pieces"), sent).closed_with(1007));
        let step = bytes.len().div_ceil(PIECES_MOST - 3);
        let mut sent = vec![frame(TEXT_BEGINS, BEFORE)];
        sent.extend(bytes.chunks(step).map(|piece| frame(GOES_ON, piece)));
        sent.push(frame(GOES_ON, AFTER));
        cases.push(Case::new(format!("{name}, cut, and never ended"), sent).closed_with(1007));
    }
    let case = Case::new("6.3 before hello", vec![frame(TEXT, b"\xff")]).before_hello();
    cases.push(case.closed_with(1007));
}

/// Invalid bytes fail at once: the rest of the message is not sent, and the close frame must arrive.
fn fast(cases: &mut Vec<Case>) {
    let good = "κόσμε".as_bytes();
    for (what, pieces) in [
        ("at the end of a piece", vec![[good, b"\xf4\x90"].concat()]),
        ("with the piece after", vec![[good, b"\xf4"].concat(), b"\x90".to_vec()]),
        ("two pieces after", vec![[good, b"\xf0"].concat(), b"\x9f".to_vec(), b"x".to_vec()]),
        ("a surrogate, cut", vec![[good, b"\xed"].concat(), b"\xa0".to_vec()]),
        ("too long a form, cut", vec![b"\xe0".to_vec(), b"\x80".to_vec()]),
        ("a lonely byte in the second piece", vec![good.to_vec(), b"\x80".to_vec()]),
        ("an impossible byte in the third piece", vec![good.to_vec(), good.to_vec(), b"\xfe".to_vec()]),
    ] {
        let frames = pieces.iter().enumerate();
        let sent = frames.map(|(n, piece)| frame(if n == 0 { TEXT_BEGINS } else { GOES_ON }, piece));
        cases.push(Case::new(format!("6.4 fails fast: {what}"), sent.collect()).closed_with(1007));
    }
    // An incomplete character is an error only at the end of the message.
    let begin = || vec![frame(TEXT_BEGINS, [BEFORE, b"\xf0\x9f"].concat())];
    let mut sent = begin();
    sent.push(frame(LAST, [b"\x98\x80", AFTER].concat()));
    cases.push(Case::new("6.4 half a character, and its rest", sent).expects([answer("r")]));
    let mut sent = begin();
    sent.push(frame(LAST, ""));
    cases.push(Case::new("6.4 half a character, and an empty rest", sent).closed_with(1007));
}
