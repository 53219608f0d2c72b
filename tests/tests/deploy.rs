//! What stands under `deploy/` is right for the binary that comes with it.
use std::path::Path;
use std::process::Command;
use turnway_tests::real::node::binary;

#[test]
fn the_example_configuration_is_accepted() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/turnway.toml");
    let check = Command::new(binary()).arg("check-config").arg("--config").arg(&file).output();
    let check = check.expect("the node's binary starts");
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    // A key that is not one is told with its place.
    let text = std::fs::read_to_string(&file).expect("the example").replace("durability", "durable");
    let dir = tempfile::tempdir().expect("a directory");
    let wrong = dir.path().join("turnway.toml");
    std::fs::write(&wrong, text).expect("a file");
    let check = Command::new(binary()).arg("check-config").arg("--config").arg(&wrong).output();
    let check = check.expect("the node's binary starts");
    assert_eq!(check.status.code(), Some(64));
    let said = String::from_utf8_lossy(&check.stdout) + String::from_utf8_lossy(&check.stderr);
    assert!(said.contains("durable") && said.contains("turnway.toml"), "{said}");
}
