//! The examples of the HTTP reference, run as printed.
use serde_json::Value;
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;

/// Returns the commands of the document's shell blocks, split into words.
fn commands(document: &str) -> Vec<Vec<String>> {
    let blocks = document.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let joined = blocks.map(|block| block.replace("\\\n", " "));
    joined.flat_map(|block| block.lines().map(words).collect::<Vec<_>>()).collect()
}

/// Splits a line like a shell; single quotes keep their contents together.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quoted = false;
    for letter in line.chars() {
        match letter {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            letter => word.push(letter),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// The request that a `curl` command would send.
#[derive(Debug, Default)]
struct CurlRequest {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

fn asked(words: &[String]) -> CurlRequest {
    let mut asked = CurlRequest { method: "GET".to_owned(), ..CurlRequest::default() };
    let mut words = words.iter();
    assert_eq!(words.next().map(String::as_str), Some("curl"));
    while let Some(word) = words.next() {
        let mut value = || words.next().expect("a value").clone();
        match word.as_str() {
            "-N" => {}
            "-X" => asked.method = value(),
            "-H" => {
                let header = value();
                let (name, value) = header.split_once(": ").expect("a header");
                asked.headers.push((name.to_owned(), value.to_owned()));
            }
            "-d" | "--data-binary" => (asked.method, asked.body) = ("POST".to_owned(), value()),
            url => asked.path = url.strip_prefix("http://127.0.0.1:8080").expect("a URL").to_owned(),
        }
    }
    asked
}

/// Runs every example and checks its status and, for streams, its first event.
#[tokio::test]
async fn every_example_of_the_reference_succeeds() {
    let document = include_str!("../../docs/http.md");
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let web = Web::new(node.http, None);
    let mut run_id = String::new();
    let mut paths = Vec::new();
    // Deletions run last, because the other examples need the deleted objects.
    let (last, first): (Vec<_>, Vec<_>) =
        commands(document).into_iter().partition(|words| words.iter().any(|word| word == "DELETE"));
    for words in first.into_iter().chain(last) {
        let CurlRequest { method, mut path, headers, body } = asked(&words);
        if let Some((before, rest)) = path.split_once("/v1/runs/s1.") {
            // The run id in the text does not exist; the test uses its own.
            let after = rest.get(26..).expect("a run");
            path = format!("{before}/v1/runs/{run_id}{after}");
        }
        let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let mut stream = web.open(&method, &path, &headers, &body).await;
        if method == "DELETE" {
            assert_eq!(stream.status, 204, "{words:?}");
            paths.push(path);
            continue;
        }
        let is_upload = method == "POST" && path.ends_with("/blobs");
        assert_eq!(stream.status, if is_upload { 201 } else { 200 }, "{words:?}");
        match stream.headers["content-type"].to_str().expect("a media type") {
            "text/event-stream" => {
                let first = stream.next().await.expect("an event");
                if first.data["type"] == "turn_accepted" {
                    run_id = first.data["run_id"].as_str().expect("a run").to_owned();
                    stream.until(|event| event.data["type"] == "done").await;
                }
            }
            // The file that an example before has uploaded.
            "text/plain" => assert_eq!(stream.reply().await.text, "abc"),
            _ => {
                let answer: Value = stream.reply().await.json();
                assert!(answer.is_object(), "{words:?}: {answer}");
            }
        }
        paths.push(path);
    }
    assert!(paths.len() >= 8, "{paths:?}");
}
