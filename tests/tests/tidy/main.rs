//! Rules of the project that the compiler does not check, applied to every tracked file. A failed rule prints its
//! violations, its reason and the way out; CONTRIBUTING.md, "Style", has all of them.
//!
//! Covers: SR-P5, SR-P6, SR-P7, MP-B3, MP-B4, S-14, S-52.
mod conformance;
mod cycles;
mod layers;
mod prose;
mod rules;
mod tree;

use tree::{Source, Tree};

/// Fails with every violation on a line of its own, then with the reason of the rule and the way out.
fn none(rule: &str, reason: &str, way_out: &str, violations: Vec<String>) {
    assert!(
        violations.is_empty(),
        "{rule}:\n  {}\nReason: {reason}\nWay out: {way_out} (CONTRIBUTING.md, Style)",
        violations.join("\n  ")
    );
}

/// Returns every violation of a rule in the sources that the rule applies to.
fn in_sources(applies: impl Fn(&Source) -> bool, rule: impl Fn(&Source) -> Vec<String>) -> Vec<String> {
    Tree::read().sources().filter(|source| applies(source)).flat_map(|source| rule(&source)).collect()
}

/// Covers: SR-P6, SR-P7.
#[test]
fn module_dependencies_follow_the_layers_table() {
    let tree = Tree::read();
    let table = layers::Table::parse(&tree.text("ARCHITECTURE.md"));
    let crates = ["core", "wire", "bindings", "node", "tool_executor", "adapter_kit", "pipeline", "gateway", "benches"];
    let violations = crates.iter().flat_map(|krate| layers::violations(&tree, &table, krate));
    none(
        "the layers table in ARCHITECTURE.md does not allow these dependencies",
        "a module that uses only lower levels can be read, tested and moved without the modules above it",
        "move the shared code to a lower level, or pass the value in; the table changes in its own commit",
        violations.collect(),
    );
}

#[test]
fn files_of_one_type_do_not_call_each_other_in_cycles() {
    let sources: Vec<Source> = Tree::read().sources().filter(Source::is_product).collect();
    none(
        "files of one type whose functions call each other in a cycle",
        "files that call each other on the same `&mut self` are one object: none of them can be read or changed alone",
        "move the state that a file needs into a part of its own, and let the part return effects to its owner; or \
         join the files",
        cycles::violations(&sources, cycles::PERMITTED),
    );
}

#[test]
fn parts_of_the_switchboard_do_not_change_each_other() {
    none(
        "a part of the switchboard that gets another part by `&mut`",
        "the order of effects, and with it the order of outputs, is decided in one place, `Switchboard::step`",
        "read the other part by shared reference, and push a command for it to the `EffectSink`",
        in_sources(|source| source.path.starts_with("node/src/switchboard/"), cycles::changed_parts),
    );
}

#[test]
fn families_of_the_session_machine_do_not_use_each_other() {
    none(
        "modules of the session machine that use another family's decisions, or the loop that calls them",
        "the decisions of one family are read and changed without those of the others",
        "give a command of `session/command.rs` to the plan, or move shared code below the families",
        layers::family_violations(&Tree::read()),
    );
}

/// Prints long files as hints. A hint fails no test; `--no-capture` shows it.
#[test]
#[expect(clippy::print_stdout, reason = "a hint is for the person who reads the output")]
fn long_files_are_printed_as_hints() {
    for hint in in_sources(|_| true, rules::long_files) {
        println!("hint: {hint}");
    }
}

#[test]
fn functions_have_at_most_70_lines() {
    none(
        "functions that are too long",
        "a function that fits on one screen is read without scrolling and has one purpose",
        "extract a step as a function with a name of its own",
        in_sources(|_| true, rules::long_functions),
    );
}

#[test]
fn module_names_are_specific() {
    none(
        "module names that fit any content",
        "a module named `util` or `types` collects code without a common subject",
        "name the file after its subject; write `foo.rs` beside `foo/` instead of `foo/mod.rs`",
        in_sources(|_| true, rules::badly_named),
    );
}

#[test]
fn files_start_with_a_description() {
    none(
        "files without a `//!` comment on the first line",
        "a reader opens one file in the middle and must learn what it is responsible for",
        "write up to three lines of `//!`: its responsibility, what it must not do, and its callers",
        in_sources(|_| true, rules::unintroduced),
    );
}

#[test]
fn doc_comments_start_with_their_subject() {
    none(
        "doc comments without a subject",
        "a comment that starts with What, Who or How is only half a sentence",
        "start with a verb on a function (\"Returns\", \"Appends\") and with a noun on a type",
        in_sources(|_| true, prose::odd_openers),
    );
}

#[test]
fn doc_comments_have_more_than_two_words() {
    none(
        "doc comments of one or two words",
        "such a comment repeats the name below it",
        "write the unit, the range or the reason, or delete the comment",
        in_sources(Source::is_product, prose::empty_docs),
    );
}

#[test]
fn public_items_have_docs() {
    none(
        "public items without docs",
        "other modules use an item by its contract, which the signature alone does not give",
        "write one sentence above the item, or make the item private",
        in_sources(Source::is_product, prose::undocumented),
    );
}

#[test]
fn type_names_are_unique_in_the_product() {
    none(
        "type names in more than one module",
        "a search for a name must lead to one definition",
        "name each type after its subject, with its module's term in front; private helpers, too",
        prose::shared_type_names(&Tree::read()),
    );
}

#[test]
fn test_names_have_at_most_70_characters() {
    none(
        "test names that are too long",
        "a report has one line for each failed test",
        "write `subject_condition_result`; details belong in a comment above the test",
        in_sources(|_| true, prose::long_test_names),
    );
}

#[test]
fn let_bindings_are_not_packed_into_tuples() {
    none(
        "bindings packed into a tuple",
        "each value stands beside its name only in a `let` of its own",
        "write one `let` for each value; if the function then gets too long, extract a part of it",
        in_sources(|_| true, prose::packed_lets),
    );
}

#[test]
fn glossary_terms_exist_in_the_code() {
    let tree = Tree::read();
    let names = prose::product_names(&tree);
    none(
        "glossary terms that are not in the code",
        "a reader searches the code for a term of the glossary",
        "name in the second column a type or module in backticks, and update the glossary with each rename",
        prose::unknown_terms(&tree.text("ARCHITECTURE.md"), &names),
    );
}

#[test]
fn stubs_ignored_tests_and_sleeps_are_absent() {
    none(
        "stubs, ignored tests and sleeps in tests",
        "a stub fails in production, an ignored test checks nothing, a sleep is too short on a busy machine",
        "finish or delete the code; in a test wait for the event itself, with a deadline",
        in_sources(|source| !source.is_tidy(), rules::undone),
    );
}

/// Covers: S-14.
#[test]
fn binary_codec_is_used_in_one_file_only() {
    let elsewhere = |source: &Source| !source.is_tidy() && source.path != "core/src/protocol/codec.rs";
    none(
        "the binary codec outside core/src/protocol/codec.rs",
        "only that file bounds what the codec may allocate and pins its format",
        "call the functions of `turnway_core::protocol::codec`",
        in_sources(elsewhere, |source| source.mentions("bincode")),
    );
}

#[test]
fn files_name_nothing_outside_the_project() {
    let tree = Tree::read();
    let files = tree.paths().filter(|path| !path.starts_with("tests/tests/tidy"));
    let words = files.flat_map(|path| rules::foreign_words(path, &tree.text(path)));
    none(
        "words and paths that mean nothing in this repository",
        "a reader has only this repository",
        "write the reason itself in place of a reference to it",
        words.collect(),
    );
}

#[test]
fn documents_name_only_documents_that_exist() {
    let tree = Tree::read();
    let files = tree.paths().filter(|path| !path.starts_with("tests/tests/tidy"));
    let missing = files.flat_map(|path| rules::missing_documents(path, &tree));
    none(
        "names of documents that do not exist",
        "a link to a missing document sends the reader nowhere",
        "correct the name, or delete the reference",
        missing.collect(),
    );
}

#[test]
fn changelog_has_an_unreleased_section() {
    let changelog = Tree::read().text("CHANGELOG.md");
    assert!(
        changelog.lines().any(|line| line == "## [Unreleased]"),
        "CHANGELOG.md has no `## [Unreleased]`: add it above the last release, for changes that users notice"
    );
}

#[test]
fn requirements_are_named_at_tests() {
    none(
        "`Covers:` above a function that is no test",
        "the report of a run has tests only, so the requirement would never be seen to hold",
        "name the requirement at each test that uses the function",
        in_sources(|source| !source.is_tidy(), conformance::no_tests),
    );
}

#[test]
fn cited_requirements_are_in_the_conformance_table() {
    let known = conformance::known(&Tree::read().text("docs/conformance.md"));
    assert!(known.len() > 200, "docs/conformance.md has only {} rows", known.len());
    let unknown = |source: &Source| {
        let cited = conformance::cited(source).into_iter().filter(|(_, id)| !known.contains(id));
        cited.map(|(line, id)| source.at(line, &id)).collect()
    };
    none(
        "requirement ids that are not in docs/conformance.md",
        "an id without a row has no text and no test",
        "correct the id, or add a row for it to docs/conformance.md",
        in_sources(|source| !source.is_tidy(), unknown),
    );
}

#[test]
fn conformance_table_matches_the_covers_comments() {
    let tree = Tree::read();
    let path = "docs/conformance.md";
    let document = tree.text(path);
    let renewed = conformance::table(&document, &conformance::coverage(&tree));
    if std::env::var_os("BLESS").is_some() {
        tree.write(path, &renewed);
    } else {
        assert!(
            renewed == document,
            "{path} is stale, so it names tests that are not there; `./test bless` \
             writes it again"
        );
    }
}

/// Compares the routes of the HTTP API with the values of the label `route`.
#[test]
fn metrics_know_every_http_route() {
    let tree = Tree::read();
    let routers = tree.sources().filter(|source| source.path.starts_with("gateway/src/http"));
    let mut routes: Vec<String> = routers
        .flat_map(|source| {
            let after = source.text.split(".route(").skip(1).map(|rest| rest.trim_start().split('"').nth(1));
            after.flatten().map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    routes.sort();
    let mut known = turnway::metrics::ROUTES.map(str::to_owned).to_vec();
    assert_eq!(known.pop().as_deref(), Some("other"), "the last entry of ROUTES is for all other paths");
    known.sort();
    assert_eq!(
        known, routes,
        "ROUTES in gateway/src/metrics/http.rs (left) and the routes of gateway/src/http (right) differ; \
         a route that is not in ROUTES is counted as `other`: add it there"
    );
}

/// Runs the unit tests of tests/mutants_embed.py, which writes the sources that `./test mutants` builds.
#[tokio::test]
async fn embedding_of_mutants_passes_its_unit_tests() {
    turnway_tests::real::python::run("../mutants_embed_tests.py", &[]).await;
}
