//! URLs of the files of a session: paths in content parts and in texts.
use crate::id::{BlobHash, SessionId};
use crate::private::Private;
use crate::protocol::history::{History, HistoryText};
use crate::protocol::input::Content;
use crate::protocol::json::read_stored;
use serde_json::Value;

/// Returns the path of a file of a session.
pub fn file_path(session: &SessionId, hash: &BlobHash) -> String {
    format!("{}{hash}", files_path(session))
}

fn files_path(session: &SessionId) -> String {
    format!("/v1/sessions/{session}/blobs/")
}

/// Returns the hash of the file that a URL names, if the URL is the path of a file of this session, alone or after the
/// address of a node.
pub fn parse_file_url(session: &SessionId, url: &str) -> Option<BlobHash> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let path = match rest {
        Some(rest) => &rest[rest.find('/')?..],
        None => url,
    };
    let (named, hash) = parse_file_path(path)?;
    (named == session.as_str()).then_some(hash)
}

/// Returns the name of the session whose file a path names, and the file's hash.
fn parse_file_path(path: &str) -> Option<(&str, BlobHash)> {
    let (session, hash) = path.strip_prefix("/v1/sessions/")?.split_once("/blobs/")?;
    Some((session, BlobHash::parse(hash)?))
}

/// Returns whether a content part names a file of another session, by its path. An agent of this session cannot read it.
pub fn names_foreign_file(session: &SessionId, content: &Content) -> bool {
    let Content::Parts(parts) = content else { return false };
    let members = parts.iter().filter_map(Value::as_object).flat_map(|part| part.values());
    let mut urls = members.filter_map(|member| member.get("url")?.as_str());
    let is_foreign = |named: &str| named != session.as_str() && SessionId::parse(named).is_ok();
    urls.any(|url| parse_file_path(url).is_some_and(|(named, _)| is_foreign(named)))
}

/// Puts the address of the gateway in front of the paths of the session's files in content parts, so that an agent can
/// read them as they are. Only a member `url` within an object of a part counts, as in `image_url`.
pub fn complete_file_urls(session: &SessionId, base: &str, content: &mut Content) {
    if let Content::Parts(parts) = content {
        complete_part_urls(session, base, parts);
    }
}

/// Completes the paths in the content parts of earlier messages that go inline, like those of a message.
pub fn complete_history_urls(session: &SessionId, base: &str, history: &mut History) {
    let History::Inline(text) = history else { return };
    // Most histories name no file, and are not read.
    if !text.reveal().contains(&files_path(session)) {
        return;
    }
    let Ok(Value::Array(messages)) = read_stored(text.reveal()) else { return };
    let mut completed = HistoryText::default();
    for mut message in messages {
        if let Some(Value::Array(parts)) = message.get_mut("content") {
            complete_part_urls(session, base, parts);
        }
        completed.push(&message);
    }
    *text = Private(completed.finish().into());
}

fn complete_part_urls(session: &SessionId, base: &str, parts: &mut [Value]) {
    let members = parts.iter_mut().filter_map(Value::as_object_mut).flat_map(|part| part.values_mut());
    for member in members {
        if let Some(Value::String(url)) = member.get_mut("url")
            && url.starts_with('/')
            && parse_file_url(session, url).is_some()
        {
            url.insert_str(0, base);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const HASH: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn session() -> SessionId {
        SessionId::parse("s1").expect("a name")
    }

    fn path() -> String {
        format!("/v1/sessions/s1/blobs/{HASH}")
    }

    /// Covers: PR-24.
    #[test]
    fn only_urls_of_own_files_are_references() {
        for url in [path(), format!("http://10.0.0.1:8080{}", path()), format!("https://gateway.example{}", path())] {
            assert_eq!(parse_file_url(&session(), &url), BlobHash::parse(HASH), "{url}");
        }
        for url in [
            path().replace("/s1/", "/s2/"),
            path().replace("ba78", "BA78"),
            format!("{}0", path()),
            format!("{}?a=b", path()),
            format!("x{}", path()),
            "https://gateway.example".to_owned(),
            String::new(),
        ] {
            assert_eq!(parse_file_url(&session(), &url), None, "{url}");
        }
    }

    /// Covers: PR-24.
    #[test]
    fn paths_in_content_parts_become_urls() {
        let foreign = path().replace("/s1/", "/s2/");
        let mut content = Content::Parts(vec![
            json!({"type": "text", "text": path()}),
            json!({"type": "image_url", "image_url": {"url": path(), "detail": "low"}}),
            json!({"type": "file", "file": {"url": path(), "filename": "a.pdf"}}),
            json!({"type": "image_url", "image_url": {"url": foreign}}),
            json!({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}),
        ]);
        complete_file_urls(&session(), "http://gw:1", &mut content);
        let Content::Parts(parts) = &content else { panic!("parts") };
        let full = format!("http://gw:1{}", path());
        assert_eq!(parts[0]["text"], path());
        assert_eq!(parts[1]["image_url"], json!({"url": full, "detail": "low"}));
        assert_eq!(parts[2]["file"]["url"], full);
        assert_eq!(parts[3]["image_url"]["url"], foreign);
        assert_eq!(parts[4]["image_url"]["url"], "https://example.org/a.png");
    }

    /// Covers: PR-24, S-06.
    #[test]
    fn only_paths_of_other_sessions_are_foreign_files() {
        let foreign = path().replace("/s1/", "/s2/");
        let part =
            |url: &str| Content::Parts(vec![json!({"type": "text", "text": "a"}), json!({"file": {"url": url}})]);
        assert!(names_foreign_file(&session(), &part(&foreign)));
        for url in [
            path(),
            format!("https://gateway.example{foreign}"),
            foreign.replace("/v1/", "/v2/"),
            format!("{foreign}0"),
            "/v1/sessions/s2/blobs/".to_owned(),
            format!("/v1/sessions//blobs/{HASH}"),
        ] {
            assert!(!names_foreign_file(&session(), &part(&url)), "{url}");
        }
        assert!(!names_foreign_file(&session(), &Content::Text(foreign.clone())));
        assert!(!names_foreign_file(&session(), &Content::Parts(vec![json!({"type": "text", "text": foreign})])));
    }

    /// Covers: PR-24, MP-G3.
    #[test]
    fn paths_in_earlier_messages_become_urls() {
        let part = json!({"type": "image_url", "image_url": {"url": path()}});
        let messages =
            [json!({"role": "user", "content": [part], "n": 1.50}), json!({"role": "assistant", "content": path()})];
        let mut history = History::from_messages(&messages).expect("short");
        complete_history_urls(&session(), "http://gw:1", &mut history);
        let text = history.inline().expect("short").to_owned();
        let read: Vec<Value> = serde_json::from_str(&text).expect("an array");
        assert_eq!(read[0]["content"][0]["image_url"]["url"], format!("http://gw:1{}", path()));
        assert_eq!(read[1]["content"], path(), "a text stays as it is");
        let other = SessionId::parse("s2").expect("a name");
        complete_history_urls(&other, "http://gw:1", &mut history);
        assert_eq!(history.inline(), Some(&*text));
    }
}
