//! Tests of splitting: an example of each rule, and properties of random texts with an independent reader of fences.
use super::*;
use crate::rng::Rng;

fn chars(text: &str, max: usize) -> Vec<String> {
    split_text(text, max, TextUnit::Chars)
}

/// Returns numbered words of a total length.
fn words(length: usize) -> String {
    let mut text: String = (0..length / 2).map(|n| format!("w{n} ")).collect();
    text.truncate(length);
    text.trim_end().to_owned()
}

/// Returns the opening line and the fence if a line opens a block.
fn opened_by(line: &str) -> Option<(&str, &str)> {
    let content = line.trim_start_matches(' ');
    let mark = content.chars().next().filter(|c| "`~".contains(*c))?;
    let info = content.trim_start_matches(mark);
    let fence = &content[..content.len() - info.len()];
    let is_fence = line.len() - content.len() < 4 && fence.len() >= 3 && !(mark == '`' && info.contains('`'));
    is_fence.then_some((line, fence))
}

fn is_closed_by(fence: &str, line: &str) -> bool {
    let line = line.trim_end_matches([' ', '\t']);
    opened_by(line).is_some_and(|(_, closing)| line.trim_start() == closing && closing.starts_with(fence))
}

/// The place of a line relative to code blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LinePlace<'a> {
    Text,
    Open(&'a str, &'a str),
    Code(&'a str, &'a str),
    Close,
}

fn places(text: &str) -> Vec<(&str, LinePlace<'_>)> {
    let mut open = None;
    let mut found = Vec::new();
    for line in text.split('\n') {
        let place = match open {
            Some((_, fence)) if is_closed_by(fence, line) => {
                open = None;
                LinePlace::Close
            }
            Some((opening, fence)) => LinePlace::Code(opening, fence),
            None => {
                open = opened_by(line);
                open.map_or(LinePlace::Text, |(opening, fence)| LinePlace::Open(opening, fence))
            }
        };
        found.push((line, place));
    }
    found
}

fn is_unclosed(text: &str) -> bool {
    places(text).last().is_some_and(|(_, place)| matches!(place, LinePlace::Open(..) | LinePlace::Code(..)))
}

fn visible(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

/// Returns the visible characters of the lines that are no fences.
fn visible_content(text: &str) -> String {
    let lines = places(text).into_iter();
    lines
        .filter(|(_, place)| matches!(place, LinePlace::Text | LinePlace::Code(..)))
        .map(|(line, _)| visible(line))
        .collect()
}

/// Returns the visible characters, each with the opening line and fence of the block that it is in.
fn visible_places(text: &str) -> Vec<(char, Option<(&str, &str)>)> {
    let mut found = Vec::new();
    for (line, place) in places(text) {
        let (fence_chars, block) = match place {
            LinePlace::Text | LinePlace::Close => (0, None),
            LinePlace::Open(opening, fence) => (fence.len(), Some((opening, fence))),
            LinePlace::Code(opening, fence) => (0, Some((opening, fence))),
        };
        let chars = line.chars().filter(|c| !c.is_whitespace()).enumerate();
        found.extend(chars.map(|(n, c)| (c, block.filter(|_| n >= fence_chars))));
    }
    found
}

/// Checks that a line opens a block again: it is the opening line, or its fence with a start of the info's first word.
fn check_reopening(line: &str, opening: &str, fence: &str) {
    let info = |line: &str| line.trim_start().strip_prefix(fence).map(str::trim).map(str::to_owned);
    let short = info(line).unwrap_or_else(|| panic!("{line:?} does not open a block with {fence:?} again"));
    let original = info(opening).expect("the opening line has its fence");
    let is_short = short.chars().count() <= 32 && original.starts_with(&short) && !short.contains(char::is_whitespace);
    assert!(line == opening || is_short, "{line:?} opens the block of {opening:?} again");
}

/// Checks that the parts without the inserted lines have each visible character of the text, in order.
fn check_nothing_is_lost(text: &str, parts: &[String]) {
    let expected = visible_places(text);
    let mut next = 0;
    for part in parts {
        let mut lines: Vec<&str> = part.split('\n').collect();
        if let Some((opening, fence)) = expected.get(next).and_then(|(_, block)| *block) {
            check_reopening(lines.remove(0), opening, fence);
        }
        let (last, before) = lines.split_last().expect("a part has a line");
        let end = next + visible(&before.concat()).chars().count();
        let is_inserted = match expected.get(end) {
            Some((_, block)) => block.is_some_and(|(_, fence)| fence == last.trim()),
            None => is_unclosed(text),
        };
        let content = if is_inserted { before.concat() } else { lines.concat() };
        for c in visible(&content).chars() {
            assert_eq!(Some(c), expected.get(next).map(|(c, _)| *c), "character {next} of {text:?} in {parts:#?}");
            next += 1;
        }
    }
    assert_eq!(next, expected.len(), "{text:?} ends early in {parts:#?}");
}

fn check_limits(text: &str, max: usize, unit: TextUnit, parts: &[String]) {
    for part in parts {
        let length = unit.length(part);
        assert!((1..=max).contains(&length), "{length} {} of {max}: {part:?} of {text:?}", unit.as_str());
        assert!(!part.trim().is_empty(), "a blank part of {text:?}");
    }
    let most = 4 * unit.length(text) / max + 4;
    assert!(parts.len() <= most, "{} parts of {text:.400?}, at most {most}", parts.len());
}

#[test]
fn text_unit_counts_code_points_utf16_and_bytes() {
    let text = "aé€😀";
    assert_eq!(TextUnit::ALL.map(|unit| unit.length(text)), [4, 5, 10]);
    assert_eq!(TextUnit::ALL.map(TextUnit::as_str), ["chars", "utf16", "bytes"]);
    assert_eq!(TextUnit::default(), TextUnit::Utf16);
}

#[test]
fn short_text_is_one_part() {
    assert_eq!(chars("Hello.\n\nA *short* answer.", 64), ["Hello.\n\nA *short* answer."]);
    let code = "```rust\n    let a = 1;\n```";
    assert_eq!(chars(code, 64), [code]);
    assert_eq!(chars(code, usize::MAX), [code]);
}

#[test]
fn blank_text_has_no_parts() {
    for text in ["", " ", "\n\n \t\r\n", "\u{3000}\u{a0}"] {
        assert_eq!(chars(text, 64), Vec::<String>::new(), "{text:?}");
    }
}

#[test]
fn limit_below_64_counts_as_64() {
    for max in [0, 1, 63] {
        assert_eq!(chars(&words(200), max), chars(&words(200), 64), "{max}");
    }
}

#[test]
fn cut_prefers_blank_line_then_line_then_sentence() {
    let cuts = |text: &str| {
        let text = format!("{}{text} {}", "x".repeat(35), "y".repeat(60));
        chars(&text, 64)[0][35..].to_owned()
    };
    assert_eq!(cuts(" a\n\nb\nc. d e"), " a");
    assert_eq!(cuts(" a\n \t\nb\nc. d e"), " a");
    assert_eq!(cuts(" a. b\nc. d e"), " a. b");
    assert_eq!(cuts(" a. b! c d e"), " a. b!");
    assert_eq!(cuts(" a? b。c d e"), " a? b。");
    assert_eq!(cuts(" a b.c d e"), " a b.c d e");
    assert_eq!(cuts("abc"), "abc");
    assert_eq!(cuts("\r\n\r\nb\r\nc"), "");
    assert_eq!(chars(&"z".repeat(130), 64).iter().map(String::len).collect::<Vec<_>>(), [64, 64, 2]);
}

#[test]
fn cut_in_the_first_half_of_the_room_is_not_preferred() {
    let text = format!("{}\n\n{} {}", "x".repeat(20), "y".repeat(30), "z".repeat(40));
    assert_eq!(chars(&text, 64), [format!("{}\n\n{}", "x".repeat(20), "y".repeat(30)), "z".repeat(40)]);
}

#[test]
fn whitespace_longer_than_the_limit_is_dropped() {
    let text = format!("{}a{}b{}c", " ".repeat(100), " \n".repeat(100), " ".repeat(100));
    assert_eq!(chars(&text, 64), ["a", "b", "c"]);
}

/// Covers: BD-T5, BR-48.
#[test]
fn characters_are_never_split() {
    let text = "😀é漢".repeat(100);
    for unit in TextUnit::ALL {
        let parts = split_text(&text, 65, unit);
        assert_eq!(parts.concat(), text, "{unit:?}");
        check_limits(&text, 65, unit, &parts);
    }
}

#[test]
fn graphemes_are_kept_whole_where_possible() {
    let graphemes = ["👨‍👩‍👧‍👦", "👍🏽", "❤️", "e\u{301}\u{302}", "🇩🇪", "1️⃣", "🏳️‍🌈"];
    for grapheme in graphemes {
        for (unit, lead) in TextUnit::ALL.into_iter().flat_map(|unit| (0..20).map(move |lead| (unit, lead))) {
            let text = format!("{}{}", "x".repeat(lead), grapheme.repeat(50));
            for part in split_text(&text, 64, unit) {
                let rest = part.trim_start_matches('x').replace(grapheme, "");
                assert_eq!(rest, "", "{unit:?} {grapheme} in {part:?}");
            }
        }
    }
    // A cut between letters is better than one after a mark.
    let text = format!("{}e\u{301}{}", "x".repeat(62), "y".repeat(50));
    assert_eq!(chars(&text, 64)[0], "x".repeat(62));
}

#[test]
fn grapheme_longer_than_the_limit_is_cut() {
    let text = format!("a{}", "\u{301}".repeat(1_000));
    for unit in TextUnit::ALL {
        let parts = split_text(&text, 64, unit);
        assert_eq!(parts.concat(), text);
        check_limits(&text, 64, unit, &parts);
    }
}

/// Covers: BD-T5, BR-48.
#[test]
fn cut_code_block_is_closed_and_opened_again() {
    let text = "Look:\n\n```rust ignore\nfn one() {\n    two();\n}\n\nfn three() {\n    four();\n}\n```\nDone.";
    assert_eq!(
        chars(text, 64),
        [
            "Look:\n\n```rust ignore\nfn one() {\n    two();\n}\n\n```",
            "```rust ignore\nfn three() {\n    four();\n}\n```\nDone."
        ]
    );
    let tildes = text.replace("```", "  ~~~~");
    assert_eq!(
        chars(&tildes, 80),
        [
            "Look:\n\n  ~~~~rust ignore\nfn one() {\n    two();\n}\n\n  ~~~~",
            "  ~~~~rust ignore\nfn three() {\n    four();\n}\n  ~~~~\nDone."
        ]
    );
}

#[test]
fn code_keeps_indentation_and_blank_lines() {
    let code: String = (0..40).map(|n| format!("{}line {n}\n{}", " ".repeat(n % 9), "\n".repeat(n % 3))).collect();
    for ending in ["\n", "\r\n"] {
        let code = code.trim_end().replace('\n', ending);
        let text = format!("```py{ending}{code}{ending}```");
        for max in 64..200 {
            let mut rest = code.as_str();
            for part in chars(&text, max) {
                let body = part.strip_prefix("```py").and_then(|part| part.strip_suffix("```")).expect("a block");
                let body = body.strip_prefix(ending).or_else(|| body.strip_prefix('\n')).expect("an opening line");
                let body = body.strip_suffix('\n').map_or(body, |body| body.strip_suffix('\r').unwrap_or(body));
                rest = rest.strip_prefix(body).unwrap_or_else(|| panic!("{max}: {body:?} is not next in {rest:?}"));
                rest = rest.strip_prefix(ending).unwrap_or(rest);
            }
            assert_eq!(rest, "", "{max}");
        }
    }
}

#[test]
fn long_code_line_is_cut_and_stays_code() {
    let line = words(150);
    let parts = chars(&format!("```\n{line}\n```"), 64);
    let body: Vec<&str> = parts.iter().map(|part| &part[4..part.len() - 4]).collect();
    assert_eq!(body.concat(), line);
    assert!(parts.iter().all(|part| part.starts_with("```\n") && part.ends_with("\n```")), "{parts:#?}");
}

#[test]
fn blank_code_longer_than_the_limit_is_kept() {
    let parts = chars(&format!("```\na{}b\n```", " ".repeat(200)), 64);
    let body: Vec<&str> = parts.iter().map(|part| &part[4..part.len() - 4]).collect();
    assert_eq!(body.concat(), format!("a{}b", " ".repeat(200)));
}

#[test]
fn unclosed_code_block_is_closed_at_the_end() {
    assert_eq!(chars("Look:\n```\nlet a = 1;\n", 64), ["Look:\n```\nlet a = 1;\n```"]);
    assert_eq!(chars("```", 64), ["```\n```"]);
    // The text itself fits, the closing fence does not.
    let code = format!("```\n{}\n{}", "x".repeat(40), "y".repeat(19));
    assert_eq!(code.len(), 64);
    assert_eq!(chars(&code, 64), [format!("```\n{}\n```", "x".repeat(40)), format!("```\n{}\n```", "y".repeat(19))]);
}

#[test]
fn reopened_line_of_a_long_info_has_only_its_first_word() {
    let text = format!("```rust {}\n{}\n```", "i".repeat(30), "code\n".repeat(30));
    let parts = chars(&text, 80);
    assert!(parts[0].starts_with(&format!("```rust {}\ncode\n", "i".repeat(30))), "{parts:#?}");
    assert!(parts.len() > 2 && parts[1..].iter().all(|part| part.starts_with("```rust\ncode\n")), "{parts:#?}");
    let text = format!("``` {}\n{}\n```", "é".repeat(45), "code\n".repeat(30));
    let parts = chars(&text, 100);
    let short = format!("``` {}\ncode", "é".repeat(32));
    assert!(parts[1..].iter().all(|part| part.starts_with(&short)), "{parts:#?}");
    for unit in TextUnit::ALL {
        check_nothing_is_lost(&text, &split_text(&text, 100, unit));
    }
}

/// Covers: BD-T5, BR-48.
#[test]
fn info_longer_than_half_of_the_limit_is_cut() {
    for (length, max) in [(1_990, 2_000), (1_990, 64), (10_000, 300)] {
        for word in ["i".repeat(length), words(length), "漢".repeat(length)] {
            for fence in ["```", "~~~~"] {
                let text = format!("Look:\n{fence}{word}\n{}{fence}\nDone.", "    code\n".repeat(300));
                for unit in TextUnit::ALL {
                    let parts = split_text(&text, max, unit);
                    check_nothing_is_lost(&text, &parts);
                    assert!(parts.iter().all(|part| unit.length(part) <= max && !is_unclosed(part)), "{parts:#?}");
                }
            }
        }
    }
}

#[test]
fn code_block_is_not_cut_beside_its_fences() {
    let text = format!("{}\n```rust\n{}\n```\nend", "x".repeat(50), "y".repeat(40));
    assert_eq!(chars(&text, 64), ["x".repeat(50), format!("```rust\n{}\n```\nend", "y".repeat(40))]);
    let text = format!("{}\n\n```rust\n{}\n```\nand the end", "x".repeat(10), "y".repeat(40));
    assert_eq!(chars(&text, 69), [text.replace("\nand the end", ""), "and the end".to_owned()]);
}

/// Lines of quotes and lists are kept whole, with their marks, as long as a line fits into a part.
///
/// Covers: BR-48.
#[test]
fn quotes_and_lists_keep_their_marks() {
    for (mark, other) in [("> ", "> "), ("- ", "  "), ("12. ", "    "), ("> - ", ">   ")] {
        let items: Vec<String> =
            (0..30).map(|n| format!("{mark}{}\n{other}{}", words(20 + n % 9), words(15))).collect();
        for unit in TextUnit::ALL {
            let parts = split_text(&items.join("\n"), 120, unit);
            check_limits(&items.join("\n"), 120, unit, &parts);
            let lines: Vec<&str> = parts.iter().flat_map(|part| part.lines()).map(str::trim_start).collect();
            let expected = items.iter().flat_map(|item| item.lines()).map(str::trim_start);
            assert_eq!(lines, expected.collect::<Vec<_>>(), "{mark:?} {unit:?}");
        }
    }
}

/// Covers: BD-T5, BR-48.
#[test]
fn code_span_and_link_are_not_cut() {
    for span in ["`a b c d e f`", "``a ` b c d``", "[a b c d](http://a/b_(c))", "![a b](c \"d e\")", "[![a b](c)](d e)"]
    {
        for lead in 0..90 {
            let text = format!("{}, {span} {}", words(90)[lead..].trim_start(), words(60));
            let parts = chars(&text, 64);
            assert!(parts.iter().any(|part| part.contains(span)), "{lead}: {parts:#?}");
        }
    }
}

#[test]
fn code_span_after_letters_is_cut_off_in_front() {
    let text = format!("{}`a b c d e f g h i j`", "x".repeat(50));
    assert_eq!(chars(&text, 64), ["x".repeat(50), "`a b c d e f g h i j`".to_owned()]);
}

#[test]
fn span_longer_than_the_limit_is_cut_at_a_space() {
    for text in [format!("`{}`", words(150)), format!("[{}](http://a)", words(150))] {
        let parts = chars(&text, 64);
        assert_eq!(parts.join(" "), text);
        check_limits(&text, 64, TextUnit::Chars, &parts);
    }
}

#[test]
fn escaped_and_unpaired_marks_make_no_spans() {
    for text in [r"\`a b c `d e f g h", r"\[a b c d](e f g h", "[a b c d] (e f g h)"] {
        let text = format!("{} {text} {}", "x".repeat(45), "y".repeat(50));
        assert!(chars(&text, 64)[0].len() > 55, "{text}");
    }
    for gap in ["\n\n", "\n- ", "\n2. "] {
        let text = format!("a `b{gap}{} `c d e f g h {}", "x".repeat(40), "y".repeat(50));
        assert!(chars(&text, 64)[0].len() > 55, "{text}");
    }
}

#[test]
fn cut_makes_no_new_fence() {
    let text = format!("{} ~~~ {}", "x".repeat(61), "y".repeat(60));
    assert_eq!(chars(&text, 64), [format!("{} ~~", "x".repeat(61)), format!("~ {}", "y".repeat(60))]);
    let code = format!("```\n{} ``` {}\n```", "x".repeat(30), words(60));
    for max in 64..90 {
        let parts = chars(&code, max);
        assert!(parts.iter().all(|part| !is_unclosed(part)), "{parts:#?}");
        check_nothing_is_lost(&code, &parts);
    }
    // Four spaces make a fence plain text, so the indentation stays.
    let text = format!("{}\n    ```\nlet a = 1;", "x".repeat(60));
    assert_eq!(chars(&text, 64)[1], "    ```\nlet a = 1;");
}

/// Returns a random piece of a text; a block is complete and ends with a line ending.
fn random_piece(rng: &mut Rng) -> String {
    let word = |rng: &mut Rng| {
        let words = [
            "a",
            "word",
            "longer-word",
            "naïve",
            "e\u{301}te\u{301}",
            "end.",
            "Why?",
            "漢字",
            "👍🏽",
            "~~~",
            "a`b",
            "(x)",
        ];
        words[rng.below(words.len() as u64) as usize].to_owned()
    };
    match rng.below(12) {
        0 => "👨‍👩‍👧‍👦".repeat(1 + rng.below(8) as usize),
        1 => "这是一个很长的句子。没有空格".repeat(1 + rng.below(4) as usize),
        2 => random_block(rng),
        3 => format!("`{} {}` ", word(rng), word(rng)),
        4 => format!("```{} {}``` ", word(rng).replace('`', ""), word(rng).replace('`', "")),
        5 => format!("[{} {}](https://example.org/{}) ", word(rng), word(rng), "p/".repeat(rng.below(30) as usize)),
        6 => "\n\n".to_owned(),
        7 => format!("\n{}- ", " ".repeat(rng.below(6) as usize)),
        8 => "x".repeat(rng.below(200) as usize),
        _ => (0..rng.below(20)).map(|_| word(rng) + " ").collect(),
    }
}

fn random_block(rng: &mut Rng) -> String {
    let mark = if rng.chance(70) { "`" } else { "~" };
    let fence = format!("{}{}", " ".repeat(rng.below(4) as usize), mark.repeat(3 + rng.below(3) as usize));
    let info = match rng.below(10) {
        0 => "long-info".repeat(rng.below(60) as usize),
        1 => format!("rust {}", "title 漢字 ".repeat(rng.below(60) as usize)),
        2..6 => "rust".to_owned(),
        _ => String::new(),
    };
    let lines: String = (0..1 + rng.below(12))
        .map(|_| match rng.below(8) {
            0 => format!("\n{}~~ code\n", " ".repeat(rng.below(8) as usize)),
            1 => format!("{} ``` ~~~ \" \n", "v".repeat(rng.below(100) as usize)),
            _ => format!("{}call(1, \"é\"); // 漢字\n", " ".repeat(rng.below(12) as usize)),
        })
        .collect();
    format!("\n{fence}{info}\n{lines}{fence}\n")
}

/// Covers: BD-T5, BR-48.
#[test]
fn random_texts_keep_every_rule() {
    for seed in 0..3_000 {
        let mut rng = Rng::from_number(seed);
        let mut text: String = (0..rng.below(12)).map(|_| random_piece(&mut rng)).collect();
        if rng.chance(10) {
            text += "\n```\nunclosed\n    code";
        }
        let max = 64 + rng.below(237) as usize;
        for unit in TextUnit::ALL {
            let parts = split_text(&text, max, unit);
            assert_eq!(parts, split_text(&text, max, unit), "seed {seed}");
            check_nothing_is_lost(text.trim_end(), &parts);
            for part in &parts {
                assert!(!is_unclosed(part), "seed {seed}, {max} {unit:?}: {part:?} of {text:?}");
                assert!(!part.trim().is_empty() && unit.length(part) <= max, "seed {seed}: {part:?}");
            }
            let openings = places(&text).into_iter().filter(|(_, place)| matches!(place, LinePlace::Open(..)));
            let longest = openings.map(|(line, _)| unit.length(line)).max().unwrap_or_default();
            if longest <= max / 4 {
                check_limits(&text, max, unit, &parts);
                let joined: String = parts.iter().map(|part| visible_content(part)).collect();
                assert_eq!(joined, visible_content(&text), "seed {seed}");
            }
        }
    }
}

/// Texts of few characters reach the states that well-formed Markdown does not.
#[test]
fn random_marks_keep_every_rule_but_the_count() {
    let marks =
        ["`", "```", "~", "~~~~", " ", "    ", "\n", "\n", "\t", "[", "](", ")", "\\", "a", "é", "\u{200D}", "😀."];
    for seed in 0..1_500 {
        let mut rng = Rng::from_number(seed);
        let text: String = (0..rng.below(400)).map(|_| marks[rng.below(marks.len() as u64) as usize]).collect();
        let max = 64 + rng.below(100) as usize;
        for unit in TextUnit::ALL {
            let parts = split_text(&text, max, unit);
            check_nothing_is_lost(text.trim_end(), &parts);
            assert!(parts.iter().all(|part| !is_unclosed(part)), "seed {seed}: {parts:#?}");
            let other_endings =
                [text.replace('\n', "\r\n"), text.replace('\n', "\r")].map(|text| split_text(&text, max, unit));
            for part in parts.iter().chain(other_endings.iter().flatten()) {
                assert!(!part.trim().is_empty() && unit.length(part) <= max, "seed {seed}, {max} {unit:?}: {part:?}");
            }
        }
    }
}

/// A quadratic search would take minutes for these texts.
#[test]
fn large_adversarial_texts_are_split() {
    let size = 48 * 1_024;
    let units = [
        "`",
        "`a",
        "``a`",
        "```\n",
        "~~~ ",
        "~",
        "[",
        "[a](",
        "[a](b)",
        "(",
        "\\",
        " a",
        "a\n",
        "\n",
        "\u{301}",
        "\u{200D}",
        "a. ",
        "👨‍👩‍👧‍👦",
        "```x\ny\n```\n",
        "```x\n",
        "    ```\n",
        "> `a\n",
        "``` a ",
        "a\r",
        "x",
        "漢",
        "1. [`",
        "🇩🇪",
        "\u{3000}x",
    ];
    let mut texts: Vec<String> = units.iter().map(|piece| piece.repeat(size / piece.len())).collect();
    texts.push((1..300).map(|length| "`".repeat(length) + " ").collect());
    texts.push(format!("```{}x\n{}", " ".repeat(size), "\n".repeat(size)));
    texts.push(format!("```\n{}\n{}", "a\n".repeat(size / 2), "`".repeat(size)));
    texts.push(format!("a\n\nb{}", " ".repeat(1_000)).repeat(size / 1_000) + "c");
    for text in texts {
        for (unit, max) in TextUnit::ALL.map(|unit| (unit, 64)).into_iter().chain([(TextUnit::Utf16, 2_000)]) {
            check_limits(&text, max, unit, &split_text(&text, max, unit));
        }
    }
}
