//! Cases of reserved bits and reserved opcodes (RFC 6455 §5.2), as in Autobahn's categories 3 and 4.
use crate::case::{Case, answer, ask};
use crate::raw::{BINARY, CLOSE, GOES_ON, LAST, PING, PONG, TEXT, TEXT_BEGINS, frame};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    bits(&mut cases);
    opcodes(&mut cases);
    cases
}

/// No negotiated extension gives one of the bits a meaning.
fn bits(cases: &mut Vec<Case>) {
    for bits in 1..8u8 {
        let odd = |first: u8, payload: &str| frame(first | bits << 4, payload);
        for (what, first, payload) in [
            ("a text", TEXT, ask("s")),
            ("an empty text", TEXT, String::new()),
            ("a text's first piece", TEXT_BEGINS, "{".to_owned()),
            ("binary", BINARY, "x".to_owned()),
            ("a ping", PING, "x".to_owned()),
            ("an empty ping", PING, String::new()),
            ("a pong", PONG, "x".to_owned()),
            ("a close", CLOSE, "\u{3}\u{78}".to_owned()),
            ("an empty close", CLOSE, String::new()),
        ] {
            let sent = vec![odd(first, &payload)];
            cases.push(Case::new(format!("3.{bits} {what} with reserved bits {bits:03b}"), sent).closed_with(1002));
        }
        let sent = vec![frame(TEXT, ask("r")), odd(TEXT, &ask("s")), frame(PING, "x")];
        let name = format!("3.{bits} a text, one with reserved bits {bits:03b}, a ping");
        cases.push(Case::new(name.clone(), sent.clone()).expects([answer("r")]).closed_with(1002));
        let case = Case::new(name + ", all at once", vec![sent.concat()]);
        cases.push(case.expects([answer("r")]).closed_with(1002));
        for (what, first) in [("last", LAST), ("middle", GOES_ON)] {
            let sent = vec![frame(TEXT_BEGINS, "{"), odd(first, "}")];
            cases.push(Case::new(format!("3.{bits} the {what} piece with bits {bits:03b}"), sent).closed_with(1002));
        }
        let case = Case::new(format!("3.{bits} bits {bits:03b} before hello"), vec![odd(TEXT, "{}")]);
        cases.push(case.before_hello().closed_with(1002));
    }
}

fn opcodes(cases: &mut Vec<Case>) {
    for code in (3..8).chain(11..16u8) {
        let group = if code < 8 { "4.1" } else { "4.2" };
        for (what, payload) in [("nothing", ""), ("a byte", "x"), ("a message", ask("s").as_str())] {
            let sent = vec![frame(0x80 | code, payload)];
            cases.push(Case::new(format!("{group} opcode {code} with {what}"), sent).closed_with(1002));
        }
        let sent = vec![frame(TEXT, ask("r")), frame(0x80 | code, "x"), frame(PING, "x")];
        let name = format!("{group} a text, opcode {code}, a ping");
        cases.push(Case::new(name.clone(), sent.clone()).expects([answer("r")]).closed_with(1002));
        let case = Case::new(name + ", all at once", vec![sent.concat()]);
        cases.push(case.expects([answer("r")]).closed_with(1002));
        let sent = vec![frame(code, "x")];
        cases.push(Case::new(format!("{group} opcode {code}, not the last piece"), sent).closed_with(1002));
        let sent = vec![frame(TEXT_BEGINS, "{"), frame(0x80 | code, "x"), frame(LAST, "}")];
        cases.push(Case::new(format!("{group} opcode {code} within a text"), sent).closed_with(1002));
    }
}
