//! A chat at a terminal: line editing below the answers, and the history of lines.
use crate::pipe::{node, url};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tokio::sync::mpsc;
use turnway_tests::real::agent::{AgentStream, Agents, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::terminal::Terminal;

const UP: &str = "\x1b[A";
const LEFT: &str = "\x1b[D";
const CTRL_A: &str = "\x01";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const CTRL_R: &str = "\x12";
const CTRL_U: &str = "\x15";

fn dir() -> TempDir {
    TempDir::new().expect("a directory")
}

/// Starts a chat at a terminal of 60 columns.
fn start_chat(node: &Node, home: &Path, args: &[&str]) -> Terminal {
    let url = url(node);
    Terminal::start(home, &[&["chat", "--url", &url, "--user", "ann"], args].concat(), &[], 60)
}

/// Returns the rows from the first entered line on.
fn from_the_first_line(rows: &[String]) -> &[String] {
    let first = rows.iter().position(|row| row.starts_with("> ")).expect("a line");
    &rows[first..]
}

/// Starts an agent that sends each piece of its answer when the test provides it.
async fn slow_agent() -> (Agents, mpsc::Sender<&'static str>) {
    let (sender, pieces) = mpsc::channel::<&'static str>(8);
    let pieces = Arc::new(Mutex::new(Some(pieces)));
    let agents = Agents::start(move |_| {
        let mut pieces = pieces.lock().expect("whole").take();
        Reply::speak(async move |stream: AgentStream| {
            // The second answer has no pieces: it ends at once.
            while let Some(pieces) = &mut pieces
                && let Some(piece) = pieces.recv().await
            {
                stream.delta(piece).await?;
            }
            stream.event("done", &json!({})).await
        })
    });
    (agents.await, sender)
}

#[tokio::test]
async fn line_is_edited_and_sent() {
    let dir = dir();
    let node = node(dir.path()).await;
    let mut ann = start_chat(&node, dir.path(), &[]);
    ann.edits("").await;
    ann.press("helo");
    ann.edits("helo").await;
    ann.press(&format!("{LEFT}l{CTRL_A}oh, "));
    ann.edits("oh, hello").await;
    ann.press("\r");
    ann.sees("echo: oh, hello").await;
    let rows = ann.edits("").await;
    assert!(rows[0].starts_with("session ") && rows[1].starts_with("resume with: "), "{rows:?}");
    assert_eq!(from_the_first_line(&rows), ["> oh, hello", "echo: oh, hello", ">"]);
    // Tab completes commands.
    ann.press("/sw\t");
    ann.edits("/switch ").await;
    ann.press("counter\r");
    ann.sees("[counter is now the active agent]").await;
    ann.press(CTRL_D);
    let (code, rows) = ann.ended().await;
    assert_eq!((code, rows.last().map(String::as_str)), (Some(0), Some("[counter is now the active agent]")));
    assert!(ann.is_as_before());
}

#[tokio::test]
async fn answer_appears_above_the_line_being_typed() {
    let dir = dir();
    let (agents, pieces) = slow_agent().await;
    let node = Node::start(dir.path(), &["--agent", &agents.flag("ada")]).await;
    let mut ann = start_chat(&node, dir.path(), &[]);
    ann.edits("").await;
    ann.press("tell me\r");
    pieces.send("It begins").await.expect("it listens");
    ann.sees("ada: It begins").await;
    ann.press("but wai");
    ann.edits("but wai").await;
    // Each piece continues where the last one ended, and the line being typed stays below.
    for piece in
        [" with a long story that does not", " fit into one row of this terminal, 日本", "語 neither\nand ends."]
    {
        pieces.send(piece).await.expect("it listens");
    }
    ann.sees("and ends.").await;
    let rows = ann.edits("but wai").await;
    let told = [
        "> tell me",
        "ada: It begins with a long story that does not fit into one",
        "row of this terminal, 日本語 neither",
        "and ends.",
        "> but wai",
    ];
    assert_eq!(from_the_first_line(&rows), told);
    // A line entered meanwhile appears above, and the answer continues below it.
    ann.press("t\r");
    ann.edits("").await;
    pieces.send(" Or not.").await.expect("it listens");
    drop(pieces);
    let rows = ann.until("the end", |rows| rows.iter().any(|row| row == "ada:  Or not.")).await;
    let at = rows.iter().position(|row| row == "> but wait").expect("it was entered");
    assert_eq!(rows[at - 1], "and ends.");
}

#[tokio::test]
async fn answer_during_a_history_search_appears_afterwards() {
    let dir = dir();
    let (agents, pieces) = slow_agent().await;
    let node = Node::start(dir.path(), &["--agent", &agents.flag("ada")]).await;
    let mut ann = start_chat(&node, dir.path(), &[]);
    ann.edits("").await;
    ann.press("tell me\r");
    pieces.send("one").await.expect("it listens");
    ann.sees("ada: one").await;
    ann.press(&format!("{CTRL_R}tel"));
    ann.until("the search", |rows| rows.last().is_some_and(|row| row.ends_with("tell me"))).await;
    for _ in 0..8 {
        pieces.send(", more").await.expect("it listens");
    }
    ann.press("\r");
    drop(pieces);
    let rows = ann.until("all of it", |rows| rows.concat().matches(", more").count() == 8).await;
    assert!(rows.iter().any(|row| row == "> tell me"), "{rows:?}");
    ann.leaves(CTRL_C).await;
    assert!(ann.is_as_before());
}

/// Covers: SR-S5.
#[tokio::test]
async fn invitation_is_answered_by_a_line() {
    let dir = dir();
    let node = node(dir.path()).await;
    let mut ann = start_chat(&node, dir.path(), &[]);
    ann.edits("").await;
    ann.press("/cancel\r");
    ann.sees("[nothing to cancel]").await;
    ann.press("/switch ada\r");
    ann.sees("[ada is not a member of this session. Invite it? (y/n)]").await;
    ann.press(CTRL_C);
    ann.sees("[ada was not invited]").await;
    ann.press("@ada hi\r");
    ann.until("the question", |rows| rows.iter().filter(|row| row.contains("(y/n)")).count() == 2).await;
    ann.press("y\r");
    ann.sees("ada: hi").await;
    ann.press("/agents\r");
    let rows = ann.until("the list", |rows| rows.iter().any(|row| row.starts_with("counter "))).await;
    let member = |name: &str| rows.iter().any(|row| row.split_whitespace().take(2).eq([name, "yes"]));
    assert!(member("ada") && member("counter"), "{rows:?}");
    ann.press("/quit\r");
    assert_eq!(ann.ended().await.0, Some(0), "a person has seen what was not done");
}

#[tokio::test]
async fn ctrl_c_cancels_an_answer_clears_a_line_or_exits() {
    let dir = dir();
    let node = node(dir.path()).await;
    let mut ann = start_chat(&node, dir.path(), &["--agent", "counter"]);
    ann.sees("[counter is now the active agent]").await;
    ann.press("count to 1000 every 20ms\r");
    ann.sees("2").await;
    ann.press(CTRL_C);
    ann.sees("counter: [cancelled]").await;
    ann.press("not this");
    ann.edits("not this").await;
    ann.press(CTRL_C);
    ann.edits("").await;
    ann.press("count to 3\r");
    let counted = |rows: &[String]| rows.windows(4).any(|rows| rows == ["> count to 3", "counter: 1", "2", "3"]);
    ann.until("the count", counted).await;
    let rows = ann.edits("").await;
    assert!(!rows.iter().any(|row| row.contains("not this")), "{rows:?}");
    // The end of the answer may not have arrived yet; then the first Ctrl-C cancels the answer.
    assert_eq!(ann.leaves(CTRL_C).await.0, Some(0));
    assert!(ann.is_as_before());
}

#[tokio::test]
async fn history_file_is_private_and_recalled() {
    let dir = dir();
    let node = node(dir.path()).await;
    let mut ann = start_chat(&node, dir.path(), &[]);
    ann.edits("").await;
    for line in ["first", " a secret", "second", "second"] {
        ann.press(&format!("{line}\r"));
        let rows = format!("echo: {}", line.trim());
        ann.sees(&rows).await;
    }
    ann.press(CTRL_D);
    assert_eq!(ann.ended().await.0, Some(0));
    let file = dir.path().join(".local/state/turnway/chat_history");
    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(file.parent().expect("a directory"))), (0o600, 0o700));
    let text = std::fs::read_to_string(&file).expect("text");
    assert_eq!(text.lines().skip(1).collect::<Vec<_>>(), ["first", "second"]);

    let mut again = start_chat(&node, dir.path(), &[]);
    again.edits("").await;
    again.press(UP);
    again.edits("second").await;
    again.press(UP);
    again.edits("first").await;
    again.press(&format!("{CTRL_U}/quit\r"));
    assert_eq!(again.ended().await.0, Some(0));
}

#[tokio::test]
async fn history_is_in_xdg_state_home_and_bounded() {
    let home = dir();
    let state = dir();
    let node = node(home.path()).await;
    let file = state.path().join("turnway/chat_history");
    std::fs::create_dir(file.parent().expect("a directory")).expect("made");
    let lines: String = (0..1500).map(|n| format!("line {n}\n")).collect();
    std::fs::write(&file, format!("#V2\n{lines}")).expect("written");
    let url = url(&node);
    let name = state.path().to_str().expect("UTF-8");
    let mut ann = Terminal::start(home.path(), &["chat", "--url", &url], &[("XDG_STATE_HOME", name)], 60);
    ann.edits("").await;
    ann.press(UP);
    ann.edits("line 1499").await;
    ann.press(&format!("{CTRL_U}the last\r"));
    ann.sees("echo: the last").await;
    ann.press(CTRL_D);
    assert_eq!(ann.ended().await.0, Some(0));
    let kept = std::fs::read_to_string(&file).expect("text");
    assert_eq!((kept.lines().count(), kept.lines().last()), (1001, Some("the last")));
    let mode = std::fs::metadata(&file).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "a file that others could read is closed");
    assert!(!home.path().join(".local").exists());
}

#[tokio::test]
async fn without_a_home_no_history_is_stored() {
    let dir = dir();
    let node = node(dir.path()).await;
    let url = url(&node);
    let mut ann = Terminal::start(dir.path(), &["chat", "--url", &url], &[("HOME", "")], 60);
    ann.edits("").await;
    ann.press("hello\r");
    ann.sees("echo: hello").await;
    ann.press(UP);
    ann.edits("hello").await;
    ann.press(&format!("{CTRL_U}{CTRL_D}"));
    let (code, rows) = ann.ended().await;
    assert_eq!(code, Some(0));
    assert!(!rows.iter().any(|row| row.contains("not saved")), "{rows:?}");
    assert!(!dir.path().join(".local").exists());
}

/// Reports once that the history cannot be stored, and continues the chat.
#[tokio::test]
async fn unwritable_history_is_reported_once() {
    let dir = dir();
    let node = node(dir.path()).await;
    std::fs::write(dir.path().join(".local"), "a file in its place").expect("written");
    let mut ann = start_chat(&node, dir.path(), &[]);
    ann.sees("[the history is not saved: ").await;
    ann.press("hello\r");
    ann.sees("echo: hello").await;
    ann.press(CTRL_D);
    let (code, rows) = ann.ended().await;
    assert_eq!((code, rows.iter().filter(|row| row.contains("not saved")).count()), (Some(0), 1));
}

/// Prints plain lines at a terminal that cannot move its cursor.
#[tokio::test]
async fn dumb_terminal_gets_plain_lines() {
    let dir = dir();
    let node = node(dir.path()).await;
    let url = url(&node);
    let mut ann = Terminal::start(dir.path(), &["chat", "--url", &url], &[("TERM", "dumb")], 60);
    ann.edits("").await;
    assert!(ann.is_as_before());
    ann.press("hello\n");
    ann.sees("echo: hello").await;
    ann.press(CTRL_D);
    assert_eq!(ann.ended().await.0, Some(0));
    assert!(!dir.path().join(".local").exists());
}

/// Restores the terminal when the chat gets SIGTERM.
#[tokio::test]
async fn terminal_is_restored_on_sigterm() {
    let dir = dir();
    let node = node(dir.path()).await;
    let mut ann = start_chat(&node, dir.path(), &[]);
    ann.edits("").await;
    ann.press("half a li");
    ann.edits("half a li").await;
    assert!(!ann.is_as_before());
    ann.signal("-TERM").await;
    let (code, rows) = ann.ended().await;
    assert!(ann.is_as_before() && code == Some(0), "{code:?}");
    assert!(!rows.iter().any(|row| row.contains("half a li")), "{rows:?}");
}

/// Erases a line of several rows, and none of the rows above it, when the chat gets SIGTERM.
#[tokio::test]
async fn sigterm_erases_a_line_of_several_rows() {
    let dir = dir();
    let node = node(dir.path()).await;
    let mut ann = start_chat(&node, dir.path(), &[]);
    ann.edits("").await;
    ann.press("hello\r");
    ann.sees("echo: hello").await;
    ann.edits("").await;
    ann.press(&"half ".repeat(30));
    // 60 columns: "> " and 150 characters take three rows.
    ann.until("the line", |rows| rows.concat().matches("half").count() == 30).await;
    ann.signal("-TERM").await;
    let (code, rows) = ann.ended().await;
    assert!(ann.is_as_before() && code == Some(0), "{code:?}");
    assert_eq!(from_the_first_line(&rows), ["> hello", "echo: hello"]);
}

/// Keeps keys that arrive between two lines, when no line is being edited.
#[tokio::test]
async fn keys_typed_between_two_lines_are_kept() {
    let dir = dir();
    let node = node(dir.path()).await;
    let mut ann = start_chat(&node, dir.path(), &[]);
    ann.edits("").await;
    for line in 0..40 {
        // Key by key, so that some of them arrive while the editor is between two lines.
        for key in format!("line {line}\r").chars() {
            ann.press(&key.to_string());
        }
    }
    ann.press(CTRL_D);
    let (code, rows) = ann.ended().await;
    assert_eq!(code, Some(0));
    let rows = from_the_first_line(&rows);
    let lines = 0..40;
    let entered: Vec<&str> = rows.iter().filter_map(|row| row.strip_prefix("> ")).collect();
    let wanted: Vec<String> = lines.clone().map(|line| format!("line {line}")).collect();
    assert_eq!(entered, wanted, "{rows:?}");
    // An entered line may divide an answer, which then continues below it.
    let answers = rows.iter().filter(|row| !row.starts_with("> ")).map(|row| row.replace("echo:", ""));
    let answered: String = answers.collect::<String>().split_whitespace().collect();
    assert_eq!(answered, lines.map(|line| format!("line{line}")).collect::<String>(), "{rows:?}");
}

/// Cancels with Ctrl-C although the user has ended the input with Ctrl-D.
#[tokio::test]
async fn ctrl_c_cancels_an_answer_after_ctrl_d() {
    let dir = dir();
    let node = node(dir.path()).await;
    let mut ann = start_chat(&node, dir.path(), &["--agent", "counter"]);
    ann.edits("").await;
    ann.press("count to 1000 every 20ms\r");
    ann.sees("2").await;
    ann.press(CTRL_D);
    // The line is erased, and the answer goes on.
    ann.until("no line", |rows| rows.last().is_some_and(|row| row.parse::<u32>().is_ok_and(|n| n > 3))).await;
    ann.press(CTRL_C);
    let (code, rows) = ann.ended().await;
    assert_eq!(code, Some(0), "{rows:?}");
    assert!(rows.iter().any(|row| row == "counter: [cancelled]"), "{rows:?}");
    assert!(ann.is_as_before());
}
