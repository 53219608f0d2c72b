//! Cases of fragmented messages (RFC 6455 §5.4), as in Autobahn's category 5.
use crate::case::{Case, Expected, answer, ask, ask_of, chopped};
use crate::framing::cut;
use crate::raw::{BINARY, BINARY_BEGINS, CLOSE, GOES_ON, LAST, PING, TEXT, TEXT_BEGINS, close, frame};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    pieces(&mut cases);
    empty(&mut cases);
    out_of_order(&mut cases);
    cases
}

fn pieces(cases: &mut Vec<Case>) {
    let text = ask_of("r", 200);
    for count in 2..=32 {
        let name = format!("5.3 a text in {count} pieces");
        let sent = cut(text.as_bytes(), count);
        cases.push(Case::new(name.clone(), sent.clone()).expects([answer("r")]));
        let case = Case::new(name + ", all at once", vec![sent.concat()]);
        cases.push(case.expects([answer("r")]));
    }
    for step in [1, 2, 5, 13] {
        let sent = chopped(&cut(text.as_bytes(), 9).concat(), step);
        cases.push(Case::new(format!("5.5 nine pieces, {step} bytes at a time"), sent).expects([answer("r")]));
    }
    for count in [33, 34, 64, 150] {
        let name = format!("5.3 a text in {count} pieces");
        let sent = cut(text.as_bytes(), count);
        cases.push(Case::new(name.clone(), sent.clone()).closed_with(4400));
        let case =
            Case::new(name + ", behind another message", vec![[frame(TEXT, ask("first")), sent.concat()].concat()]);
        cases.push(case.expects([answer("first")]).closed_with(4400));
    }
    for count in [2, 3, 32] {
        let mut sent = vec![frame(BINARY_BEGINS, "x")];
        sent.extend(vec![frame(GOES_ON, "x"); count - 2]);
        sent.push(frame(LAST, "x"));
        cases.push(Case::new(format!("5.3 binary in {count} pieces"), sent).closed_with(1003));
    }
    let mut sent = Vec::new();
    let mut heard = Vec::new();
    for n in 0..20 {
        let id = format!("r{n}");
        sent.extend(cut(ask(&id).as_bytes(), 2 + n));
        heard.push(answer(&id));
    }
    cases.push(Case::new("5.19 twenty texts in pieces", sent.clone()).expects(heard.clone()));
    cases.push(Case::new("5.19 twenty texts in pieces, all at once", vec![sent.concat()]).expects(heard));
}

/// A fragment may be empty.
fn empty(cases: &mut Vec<Case>) {
    let text = ask("r");
    let whole = text.as_str();
    for (what, pieces) in [
        ("first", vec!["", whole]),
        ("last", vec![whole, ""]),
        ("first and last", vec!["", whole, ""]),
        ("middle", vec![&whole[..9], "", &whole[9..]]),
        ("every second", vec!["", &whole[..9], "", &whole[9..], ""]),
    ] {
        let last = pieces.len() - 1;
        let frames = pieces.iter().enumerate().map(|(n, piece)| match n {
            0 => frame(TEXT_BEGINS, piece),
            _ if n == last => frame(LAST, piece),
            _ => frame(GOES_ON, piece),
        });
        let case = Case::new(format!("5.6 a text whose {what} piece is empty"), frames.collect());
        cases.push(case.expects([answer("r")]));
    }
    let sent = vec![frame(TEXT_BEGINS, ""), frame(GOES_ON, ""), frame(LAST, "")];
    cases.push(Case::new("5.6 a text of empty pieces", sent).expects([Expected::Error("invalid_message")]));
    let sent = vec![frame(BINARY_BEGINS, ""), frame(LAST, "")];
    cases.push(Case::new("5.6 binary of empty pieces", sent).closed_with(1003));
}

/// A continuation needs a first fragment, and a fragmented message must end before the next one begins.
fn out_of_order(cases: &mut Vec<Case>) {
    for (what, first) in [("last", LAST), ("middle", GOES_ON)] {
        for payload in ["", "x", ask("s").as_str()] {
            let length = payload.len();
            let name = format!("5.9 a {what} piece of {length} bytes of nothing");
            cases.push(Case::new(name.clone(), vec![frame(first, payload)]).closed_with(1002));
            let case = Case::new(name.clone() + ", before hello", vec![frame(first, payload)]);
            cases.push(case.before_hello().closed_with(1002));
            let sent = vec![frame(TEXT, ask("r")), frame(first, payload)];
            cases.push(Case::new(name.clone() + ", after a text", sent).expects([answer("r")]).closed_with(1002));
            let mut sent = cut(ask("r").as_bytes(), 3);
            sent.push(frame(first, payload));
            let case = Case::new(name.clone() + ", after a text in pieces", sent.clone());
            cases.push(case.expects([answer("r")]).closed_with(1002));
            let case = Case::new(name + ", after a text in pieces, all at once", vec![sent.concat()]);
            cases.push(case.expects([answer("r")]).closed_with(1002));
        }
    }
    for (what, begins) in [("a text", TEXT_BEGINS), ("binary", BINARY_BEGINS)] {
        for (other, first) in [
            ("a text", TEXT),
            ("binary", BINARY),
            ("a text's first piece", TEXT_BEGINS),
            ("binary's first piece", BINARY_BEGINS),
        ] {
            for payload in ["", "{}"] {
                let sent = vec![frame(begins, "{"), frame(first, payload)];
                let name = format!("5.18 {other} of {} bytes within {what}", payload.len());
                cases.push(Case::new(name.clone(), sent.clone()).closed_with(1002));
                let case = Case::new(name + ", all at once", vec![[sent.concat(), frame(LAST, "}")].concat()]);
                cases.push(case.closed_with(1002));
            }
        }
    }
    let sent = vec![frame(TEXT_BEGINS, "{"), frame(CLOSE & 0x7f, ""), frame(LAST, "}")];
    cases.push(Case::new("5.5 §5.5 a close in pieces within a text", sent).closed_with(1002));
    cases.push(Case::new("5.5 §5.5 a close in pieces", vec![frame(CLOSE & 0x7f, "")]).closed_with(1002));
    let sent = vec![frame(TEXT_BEGINS, "{"), close(1000, "enough"), frame(LAST, "}")];
    let end = crate::case::End::ClosedSaying(1000, "enough".to_owned());
    cases.push(Case::new("5.5 §5.4 a close between two pieces", sent).ends(end));
    let sent = vec![frame(PING, "x"), frame(TEXT_BEGINS, "{"), frame(TEXT, ask("r"))];
    let case = Case::new("5.18 a ping, and a text within a text", sent);
    cases.push(case.expects([Expected::Pong(b"x".to_vec())]).closed_with(1002));
}
