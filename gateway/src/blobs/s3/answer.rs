//! Reads the XML of an S3-compatible store: the code of an error, and the keys of a list. Everything in it is foreign.
use std::borrow::Cow;

/// Characters of an error's code that are kept: longer ones are no codes.
const CODE_CHARACTERS_MAX: usize = 64;

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectPage {
    /// Keys in their order.
    pub(super) keys: Vec<String>,
    pub(super) is_truncated: bool,
}

/// Returns the code of an error; a placeholder if the answer has none.
pub(super) fn error_code(xml: &str) -> String {
    let code = text_of(xml, "Code").map(|(code, _)| code).unwrap_or_default();
    let is_code =
        (1..=CODE_CHARACTERS_MAX).contains(&code.len()) && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_code { code.to_owned() } else { "none".to_owned() }
}

/// Parses a page of `ListObjectsV2`; none if the answer is something else.
pub(super) fn parse_page(xml: &str) -> Option<ObjectPage> {
    let (is_truncated, _) = text_of(xml, "IsTruncated")?;
    let is_truncated = match is_truncated.trim() {
        "true" => true,
        "false" => false,
        _ => return None,
    };
    let mut keys = Vec::new();
    let mut rest = xml;
    while let Some((object, after)) = text_of(rest, "Contents") {
        let (key, _) = text_of(object, "Key")?;
        keys.push(unescape(key)?.into_owned());
        rest = after;
    }
    Some(ObjectPage { keys, is_truncated })
}

/// Returns the content of the first element with this name, which has no attributes, and the text after it.
fn text_of<'x>(xml: &'x str, name: &str) -> Option<(&'x str, &'x str)> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>"))
}

/// Replaces the references of XML; none if one of them is unknown.
fn unescape(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('&') {
        return Some(text.into());
    }
    let mut parts = text.split('&');
    let mut plain = parts.next()?.to_owned();
    for part in parts {
        let (reference, rest) = part.split_once(';')?;
        plain.push(match reference {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            _ => {
                let number = reference.strip_prefix('#')?;
                let number = match number.strip_prefix('x') {
                    Some(digits) => u32::from_str_radix(digits, 16),
                    None => number.parse(),
                };
                char::from_u32(number.ok()?)?
            }
        });
        plain.push_str(rest);
    }
    Some(plain.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: PR-24.
    #[test]
    fn page_of_objects_is_parsed() {
        let xml = "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
                   <Name>files</Name><IsTruncated>true</IsTruncated><Contents><Key>a/b</Key><Size>1</Size></Contents>\
                   <Contents><ETag>&quot;x&quot;</ETag><Key>a &amp; b&#x21;&#33;</Key></Contents></ListBucketResult>";
        let page = parse_page(xml).expect("a page");
        assert_eq!(page, ObjectPage { keys: vec!["a/b".to_owned(), "a & b!!".to_owned()], is_truncated: true });
        let empty = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
        assert_eq!(parse_page(empty), Some(ObjectPage { keys: Vec::new(), is_truncated: false }));
        for wrong in [
            "",
            "<html></html>",
            "<IsTruncated>maybe</IsTruncated>",
            "<IsTruncated>false</IsTruncated><Contents></Contents>",
            "<IsTruncated>false</IsTruncated><Contents><Key>&other;</Key></Contents>",
            "<IsTruncated>false</IsTruncated><Contents><Key>&#xd800;</Key></Contents>",
        ] {
            assert_eq!(parse_page(wrong), None, "{wrong}");
        }
    }

    /// Covers: PR-24.
    #[test]
    fn error_code_is_taken_only_if_it_is_one() {
        assert_eq!(error_code("<Error><Code>NoSuchKey</Code><Message>x</Message></Error>"), "NoSuchKey");
        for wrong in [
            "",
            "<Code></Code>",
            "<Code>a\nb</Code>",
            "<Code>AccessDenied",
            &format!("<Code>{}</Code>", "x".repeat(65)),
        ] {
            assert_eq!(error_code(wrong), "none", "{wrong}");
        }
    }
}
