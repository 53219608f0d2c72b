//! A chat with lines from a pipe: each line waits for the answer to the last one, and the exit code shows
//! failures.
use std::path::Path;
use std::process::Stdio;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::command::Ended;
use turnway_tests::real::node::{Node, binary};

/// Starts a demo node with a third agent, which is no member of new sessions.
pub(crate) async fn node(dir: &Path) -> Node {
    let args = ["--demo", "--agent", "ada=builtin:echo", "--default-agent", "echo"];
    Node::start(dir, &args).await
}

pub(crate) fn url(node: &Node) -> String {
    format!("ws://{}", node.http)
}

/// Runs a chat with these lines to its end.
pub(crate) async fn chat(node: &Node, args: &[&str], lines: &str) -> Ended {
    let mut command = Command::new(binary());
    command.arg("chat").args(args).env("TURNWAY_URL", url(node)).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(lines.as_bytes()).await.expect("it reads");
    drop(stdin);
    let output = timeout(PATIENCE, child.wait_with_output()).await.expect("it ends").expect("it ran");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Returns the lines of a chat without its two header lines.
pub(crate) fn printed_lines(ended: &Ended) -> Vec<&str> {
    ended.out.lines().skip(2).collect()
}

/// Returns the session id that a chat has printed.
pub(crate) fn session(ended: &Ended) -> &str {
    let first = ended.out.lines().next().expect("a line");
    first.strip_prefix("session ").expect("a session")
}

#[tokio::test]
async fn lines_are_sent_one_after_another() {
    let dir = TempDir::new().expect("a directory");
    let node = node(dir.path()).await;
    let ended = chat(&node, &["--user", "ann"], "one\n\ntwo\n").await;
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    assert_eq!(printed_lines(&ended), ["ann: one", "echo: one", "ann: two", "echo: two"]);
    // A returning user sees the earlier lines.
    let again = chat(&node, &["--user", "ann", "--session", session(&ended)], "three\n").await;
    let whole = ["ann: one", "echo: one", "ann: two", "echo: two", "ann: three", "echo: three"];
    assert_eq!((again.code, printed_lines(&again)), (Some(0), whole.to_vec()));
}

#[tokio::test]
async fn help_lists_commands_and_typos_get_hints() {
    let dir = TempDir::new().expect("a directory");
    let node = node(dir.path()).await;
    let ended = chat(&node, &[], "/help\n/swich ada\n/frob\n/switch\n").await;
    for command in ["/agents", "/switch AGENT", "@AGENT TEXT", "/steer TEXT", "/cancel", "/close", "/quit"] {
        assert!(printed_lines(&ended).iter().any(|line| line.starts_with(command)), "{command}: {ended:?}");
    }
    let hints = [
        "[no such command: /swich; did you mean /switch? /help shows all]",
        "[no such command: /frob; /help shows all]",
        "[to whom? /switch AGENT; /agents lists them]",
    ];
    assert_eq!(ended.err.lines().collect::<Vec<_>>(), hints);
    assert_eq!(ended.code, Some(0));
}

#[tokio::test]
async fn cancel_command_stops_the_answer() {
    let dir = TempDir::new().expect("a directory");
    let node = node(dir.path()).await;
    let lines = "@counter count to 1000 every 50ms\n/cancel\nafterwards\n";
    let ended = chat(&node, &["--user", "ann"], lines).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let said = printed_lines(&ended);
    assert!(said.iter().any(|line| line.ends_with(": [cancelled]")), "{said:?}");
    assert_eq!(said[said.len() - 2..], ["ann: afterwards", "echo: afterwards"]);
}

/// Runs the commands that a demo node prints as hints.
#[tokio::test]
async fn printed_demo_hints_work() {
    let dir = TempDir::new().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let mut hints = Vec::new();
    loop {
        let line = node.line().await.expect("hints");
        match line.split_once("In the chat:") {
            Some((_, first)) => hints.push(first.trim().to_owned()),
            None if line.contains("Check health:") => break,
            None if hints.is_empty() => {}
            None => hints.push(line.trim().to_owned()),
        }
    }
    let commands = hints.pop().expect("hints");
    let commands = commands.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned);
    hints.extend(commands);
    assert_eq!(hints, ["hello", "@counter count to 20 every 500ms", "@assistant what did I say?", "/agents", "/help"]);
    for hint in hints {
        // A count of ten seconds is cancelled.
        let stop = if hint.starts_with('@') { "/cancel\n" } else { "" };
        let ended = chat(&node, &["--user", "ann"], &format!("{hint}\n{stop}")).await;
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{hint}: {ended:?}");
        assert!(!printed_lines(&ended).is_empty(), "{hint}: {ended:?}");
    }
}
