//! Tests of reading untrusted JSON.
use super::*;
use crate::protocol::json::{Json, number_literal};
use serde_json::json;

fn written(text: &str) -> String {
    Json(read(text).unwrap_or_else(|why| panic!("{text}: {why:?}"))).text()
}

/// Covers: S-13.
#[test]
fn number_is_written_as_it_was_read() {
    for number in [
        "0",
        "-0",
        "-1",
        "18446744073709551615",
        "18446744073709551616",
        "-9223372036854775808",
        "-9223372036854775809",
        "123456789012345678901234567890",
        "1e400",
        "-1E+400",
        "1e-400",
        "1.0",
        "1.00",
        "1e3",
        "0.1",
        "0.12345678901234567890123",
        "5e-324",
        "1.7976931348623157e308",
        "2e0",
    ] {
        let nested = format!(r#"{{"a":[{number},{{"b":{number}}}]}}"#);
        assert_eq!((written(number), written(&nested)), (number.to_owned(), nested.clone()));
        let back: Json = serde_json::from_str(&nested).expect("it is read back");
        assert_eq!(back.text(), nested);
        assert_eq!(serde_json::from_str::<Option<Json>>(number).expect("a value"), Some(Json(exact(number))));
    }
    for none in ["01", "-", "+1", "1.", ".5", "1e", "1e+", "0x1", "NaN", "Infinity", "1_0", "--1", "00"] {
        assert_eq!(read(none), Err(BadJson::Syntax), "{none}");
    }
}

fn exact(text: &str) -> Value {
    read(text).expect("a number")
}

/// A number of this node's own fields must be one that `serde_json` can hold.
///
/// Covers: S-13.
#[test]
fn an_unusual_number_is_no_integer_and_no_object_of_a_peer() {
    let long = exact("18446744073709551616");
    assert_eq!((long.as_u64(), number_literal(&long)), (None, Some("18446744073709551616")));
    assert_eq!((exact("7").as_u64(), number_literal(&exact("7"))), (Some(7), None));
    let forged = format!(r#"{{"{RESERVED}Literal":"7"}}"#);
    assert_eq!(read(&forged), Err(BadJson::ReservedKey));
    assert_eq!(read(&format!("[[{forged}]]")), Err(BadJson::ReservedKey));
    assert_eq!(read(&"9".repeat(JSON_NUMBER_BYTES_MAX)).map(|_| ()), Ok(()));
    assert_eq!(read(&"9".repeat(JSON_NUMBER_BYTES_MAX + 1)), Err(BadJson::LongNumber));
    assert!(serde_json::from_str::<Json>(&"9".repeat(JSON_NUMBER_BYTES_MAX + 1)).is_ok(), "what is stored is read");
}

/// Covers: S-13.
#[test]
fn a_lone_surrogate_becomes_a_replacement_character() {
    for (text, expected) in [
        (r#""\ud83d\ude00""#, "\u{1F600}"),
        (r#""a\ud83db""#, "a\u{FFFD}b"),
        (r#""\ude00""#, "\u{FFFD}"),
        (r#""\ud83d\ud83d\ude00""#, "\u{FFFD}\u{1F600}"),
        (r#""\ude00\ud83d""#, "\u{FFFD}\u{FFFD}"),
        (r#""\ud83d\n""#, "\u{FFFD}\n"),
        (r#""\uD83D\u0041""#, "\u{FFFD}A"),
        (r#""\u00e9\/\"\\\b\f\n\r\t\u0000""#, "é/\"\\\u{8}\u{c}\n\r\t\0"),
    ] {
        assert_eq!(read(text), Ok(Value::String(expected.to_owned())), "{text}");
    }
    for none in [r#""\ud83d\u12""#, r#""\uzzzz""#, r#""\x""#, r#""\"#, r#"""#, "\"\n\"", "\"\u{0}\""] {
        assert_eq!(read(none), Err(BadJson::Syntax), "{none:?}");
    }
}

#[test]
fn surrogate_halves_at_field_ends_are_reported() {
    let halves = |text: &str| read_with_halves(&format!(r#"{{"x":"\ud83d","text":{text}}}"#), "text").expect("JSON").1;
    let high = Some(0xD83D);
    let low = Some(0xDE00);
    assert_eq!(halves(r#""\ud83d""#), SurrogateHalves { first: None, last: high });
    assert_eq!(halves(r#""a\ud83d""#), SurrogateHalves { first: None, last: high });
    assert_eq!(halves(r#""\ude00""#), SurrogateHalves { first: low, last: None });
    assert_eq!(halves(r#""\ude00b\ud83d""#), SurrogateHalves { first: low, last: high });
    assert_eq!(halves(r#""\ude00\ude00""#), SurrogateHalves { first: low, last: None });
    assert_eq!(halves(r#""\ud83da""#), SurrogateHalves::default());
    assert_eq!(halves(r#""a\ude00b""#), SurrogateHalves::default());
    assert_eq!(halves(r#""\ud83d\ude00""#), SurrogateHalves::default());
    assert_eq!(halves("7"), SurrogateHalves::default());
    // No surrogate halves are returned for a field of that name in another object.
    let inner = read_with_halves(r#"{"a":{"text":"\ud83d"},"text":"b"}"#, "text").expect("JSON");
    assert_eq!(inner.1, SurrogateHalves::default());
}

/// Both readers agree on every value that both can hold, and on what is not JSON.
///
/// Covers: S-13.
#[test]
fn ordinary_json_is_read_as_serde_json_reads_it() {
    let texts = [
        "null",
        "true",
        "false",
        " [ ] ",
        "{ }",
        "[1,2,[3]]",
        r#"{"b":1,"a":{"c":"d"}}"#,
        "\t\"x\"\r\n",
        "[1,]",
        "[,1]",
        "{\"a\"}",
        "{\"a\":}",
        "{,}",
        "{\"a\":1,}",
        "tru",
        "truex",
        "nul",
        "[1 2]",
        "[1",
        "{\"a\":1",
        "\"a",
        "]",
        "",
        " ",
        "{} {}",
        "[]]",
        "'a'",
        "\u{feff}{}",
        "[\"\u{7f}\"]",
        "{1:2}",
        "\"\\u00e9\"",
        "[-]",
        "é",
    ];
    for text in texts {
        let ours = read(text).ok();
        assert_eq!(ours, serde_json::from_str::<Value>(text).ok(), "{text:?}");
        for cut in (0..text.len()).filter(|cut| text.is_char_boundary(*cut)) {
            let ours = read(&text[..cut]).ok();
            let theirs = serde_json::from_str::<Value>(&text[..cut]).ok();
            assert_eq!(ours, theirs, "{:?}", &text[..cut]);
        }
    }
    assert_eq!(written(r#"{"b":1,"a":[ "\u0041" ]}"#), json!({"a": ["A"], "b": 1}).to_string());
}

/// Covers: S-13.
#[test]
fn items_of_a_long_list_are_read_one_by_one() {
    let items = |text: &str| {
        let mut seen = Vec::new();
        read_items(text, "m", &mut |item| seen.push(item)).map(|rest| (rest, seen))
    };
    let (rest, seen) = items(r#"{"a":[1],"m":[{"x":[2]}, "y" ,3],"z":{"m":[4]}}"#).expect("JSON");
    assert_eq!(rest, json!({"a": [1], "m": [], "z": {"m": [4]}}));
    assert_eq!(seen, [json!({"x": [2]}), json!("y"), json!(3)]);
    assert_eq!(items(r#"{"m":[]}"#), Ok((json!({"m": []}), Vec::new())));
    assert_eq!(items(r#"{"m":"y"}"#), Ok((json!({"m": "y"}), Vec::new())));
    for bad in [r#"{"m":[1"#, r#"{"m":[1,]}"#, r#"{"m":[1}"#, r#"{"m":[1 2]}"#, r#"{"m":[,1]}"#] {
        assert_eq!(items(bad), Err(BadJson::Syntax), "{bad}");
    }
    assert_eq!(items(r#"{"m":[1],"m":[2]}"#), Err(BadJson::RepeatedKey));
    let list = |count: usize| format!("[{}]", vec!["0"; count - 1].join(","));
    let many = vec![list(JSON_NODES_MAX); 3].join(",");
    assert_eq!(items(&format!(r#"{{"m":[{many}]}}"#)).map(|(_, seen)| seen.len()), Ok(3));
    assert_eq!(items(&format!(r#"{{"m":[{}]}}"#, list(JSON_NODES_MAX + 1))), Err(BadJson::TooManyValues));
    assert_eq!(items(&format!(r#"{{"m":[{many}],"z":{}}}"#, list(JSON_NODES_MAX))), Err(BadJson::TooManyValues));
    let deep = |depth: usize| format!(r#"{{"m":[{}{}]}}"#, "[".repeat(depth), "]".repeat(depth));
    assert!(items(&deep(JSON_DEPTH_MAX - 2)).is_ok());
    assert_eq!(items(&deep(JSON_DEPTH_MAX - 1)), Err(BadJson::TooDeep));
}
