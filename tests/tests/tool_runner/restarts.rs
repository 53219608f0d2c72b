//! Tests restarts and disconnects of runners, connections and gateways.
use super::{connected_runner, list};
use serde_json::json;
use turnway_tests::real::scripted_gateway::{Runner, ScriptedGateway, processes_of};

/// Covers: EV-N5, EV-A2, LN-EV12: killed in the middle of a process.
#[tokio::test]
async fn restarted_runner_knows_the_actions_of_the_killed_one() {
    let (asking, mut gateway, runner, dir) = connected_runner().await;
    let done = gateway.spawn("tick", json!({})).await;
    let before = gateway.result(&done).await;
    let family = gateway.spawn("family", json!({})).await;
    gateway.until("chunk", &family).await;
    let stubborn = gateway.spawn("stubborn", json!({})).await;
    gateway.until("invoked", &stubborn).await;
    runner.kill().await;
    assert_eq!(processes_of(&family), 3, "nobody has ended them yet");
    let _runner = Runner::launch(dir.path(), asking.address(), &list(dir.path()), &[]);
    let mut gateway = asking.accept().await;
    for id in [&family, &stubborn] {
        gateway.say(json!({"type": "query", "action_id": id})).await;
        let result = gateway.result(id).await;
        assert_eq!(processes_of(id), 0);
        assert_eq!((&result["ok"], &result["error"]["code"]), (&json!(false), &json!("abnormal_exit")));
    }
    gateway.execute(&family, "s1", "process.spawn", json!({"program": "family"}), 60_000).await;
    assert_eq!(gateway.result(&family).await["error"]["code"], "abnormal_exit");
    assert_eq!(processes_of(&family), 0);
    gateway.say(json!({"type": "query", "action_id": done})).await;
    assert_eq!(gateway.result(&done).await["result"], before["result"]);
    let more = gateway.spawn("tick", json!({})).await;
    assert_eq!(gateway.result(&more).await["result"]["stdout"], "x\nx\n");
}

/// Covers: EV-E5, EV-N5.
#[tokio::test]
async fn result_is_resent_until_acknowledged_and_process_continues() {
    let (asking, mut gateway, _runner, _dir) = connected_runner().await;
    let sleep = gateway.spawn("sleep", json!({})).await;
    gateway.until("invoked", &sleep).await;
    gateway.answers = false;
    let echo = gateway.spawn("echo", json!({"text": "a"})).await;
    gateway.result(&echo).await;
    // The gateway closes without having acknowledged the result.
    gateway.close(1001).await;
    let mut gateway = asking.accept().await;
    assert_eq!(gateway.result(&echo).await["ok"], true);
    gateway.say(json!({"type": "query", "action_id": sleep})).await;
    gateway.until("invoked", &sleep).await;
    let other = gateway.spawn("echo", json!({"text": "b"})).await;
    gateway.result(&other).await;
    // The result sent before the answered ping was acknowledged, so that result is not sent again.
    let third = gateway.spawn("echo", json!({"text": "c"})).await;
    gateway.result(&third).await;
    gateway.close(1001).await;
    let mut gateway = asking.accept().await;
    let fourth = gateway.spawn("echo", json!({"text": "d"})).await;
    let mut said = Vec::new();
    while said.last() != Some(&fourth) {
        let message = gateway.next().await.expect("it goes on");
        if message["type"] == "result" {
            said.push(message["action_id"].as_str().expect("a name").to_owned());
        }
    }
    assert!(!said.contains(&echo) && !said.contains(&sleep), "{said:?}");
}

/// Covers: EV-N5.
#[tokio::test]
async fn sigterm_stops_processes_and_reports_their_end() {
    let asking = ScriptedGateway::listen().await;
    let dir = tempfile::tempdir().expect("a directory");
    let runner = Runner::launch(dir.path(), asking.address(), &list(dir.path()), &["--wait", "300ms"]);
    let mut gateway = asking.accept().await;
    let sleep = gateway.spawn("sleep", json!({})).await;
    gateway.until("invoked", &sleep).await;
    let quick = gateway.spawn("sleep", json!({"seconds": 0})).await;
    gateway.until("invoked", &quick).await;
    runner.terminate().await;
    let result = gateway.result(&sleep).await;
    assert_eq!(result["error"]["code"], "runner_stopped");
    // The runner stays until the result was acknowledged.
    while gateway.next().await.is_some() {}
    assert_eq!(runner.exit().await, Some(0));
    assert_eq!(processes_of(&sleep), 0);
}

#[tokio::test]
async fn second_sigterm_exits_at_once_without_processes() {
    let (_asking, mut gateway, runner, _dir) = connected_runner().await;
    let stubborn = gateway.spawn("stubborn", json!({})).await;
    gateway.until("chunk", &stubborn).await;
    runner.terminate().await;
    // The runner has handled the first signal once it refuses new actions.
    loop {
        let id = gateway.ask("process.status", json!({})).await;
        if gateway.result(&id).await["error"]["code"] == "runner_stopped" {
            break;
        }
    }
    runner.terminate().await;
    assert_eq!(runner.exit().await, Some(0));
    assert_eq!(processes_of(&stubborn), 0);
}

/// Covers: S-02.
#[tokio::test]
async fn forbidden_runner_exits_with_the_reason() {
    let asking = ScriptedGateway::listen().await;
    let dir = tempfile::tempdir().expect("a directory");
    let runner = Runner::launch(dir.path(), asking.address(), &list(dir.path()), &[]);
    let mut gateway = asking.accept_silently().await;
    gateway.say(json!({"type": "error", "code": "forbidden", "message": "operators only"})).await;
    gateway.close(4403).await;
    assert_eq!(runner.exit().await, Some(69));
    let log = std::fs::read_to_string(dir.path().join("runner.log")).expect("a log");
    assert!(log.contains("the gateway refuses this runner: operators only"), "{log}");
}

#[tokio::test]
async fn runner_retries_until_the_gateway_accepts_it() {
    let asking = ScriptedGateway::listen().await;
    let dir = tempfile::tempdir().expect("a directory");
    let _runner = Runner::launch(dir.path(), asking.address(), &list(dir.path()), &[]);
    // The runner is refused a few times, as by a node that is full or starting.
    for code in [4408, 4429, 4503] {
        asking.accept_silently().await.close(code).await;
    }
    let mut gateway = asking.accept().await;
    let echo = gateway.spawn("echo", json!({"text": "a"})).await;
    assert_eq!(gateway.result(&echo).await["ok"], true);
}
