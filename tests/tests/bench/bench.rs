//! Checks of the load generator's output files, and access to a node's metrics.
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{interval, timeout};
use turnway_tests::real::PATIENCE;

/// Returns a sample of a node's metrics once it has reached `least`: metrics are updated periodically.
pub(crate) async fn metric(admin: SocketAddr, name: &str, least: u64) -> u64 {
    let read = async {
        let mut now_and_then = interval(Duration::from_millis(50));
        loop {
            now_and_then.tick().await;
            let text = metrics(admin).await;
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            if let Some(value) = value.filter(|value| *value >= least) {
                return value;
            }
        }
    };
    timeout(PATIENCE, read).await.unwrap_or_else(|_| panic!("{name} did not reach {least}"))
}

async fn metrics(admin: SocketAddr) -> String {
    let mut stream = TcpStream::connect(admin).await.expect("the operator's listener");
    let ask = format!("GET /metrics HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.expect("it listens");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("it answers");
    text
}

/// Returns the keys of an object and its inner objects, except where keys are data.
pub(crate) fn keys(value: &Value) -> Vec<String> {
    let Some(object) = value.as_object() else { return Vec::new() };
    let inner = object.values().flat_map(|value| match value {
        Value::Array(all) => all.first().map(keys).unwrap_or_default(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => keys(value),
    });
    object.keys().cloned().chain(inner).collect()
}

/// Asserts that an SVG has balanced tags and quotes, titles and curves.
pub(crate) fn assert_well_formed_svg(svg: &str) {
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""), "{svg}");
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').expect("a tag ends");
        assert!(!text.contains('>') && tag.matches('"').count() % 2 == 0, "<{tag}>{text}");
        let name = tag.split_whitespace().next().expect("a name").trim_end_matches('/');
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "an end without a beginning"),
            None if !tag.ends_with('/') => open.push(name),
            None => {}
        }
    }
    assert!(open.is_empty(), "{open:?} did not end");
    for part in ["<polyline points=\"", ">percentile<", ">seconds<", ">latency<"] {
        assert!(svg.contains(part), "no {part}");
    }
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}
