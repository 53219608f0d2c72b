//! The house rules that a compiler does not know, held against every tracked file.
//!
//! Covers: SR-P5, SR-P6, SR-P7, MP-B3, MP-B4, S-14, S-52.
mod conformance;
mod layers;
mod prose;
mod rules;
mod tree;

use tree::{Source, Tree};

/// Fails with every breach at once, each on a line of its own.
fn none(what: &str, breaches: Vec<String>) {
    assert!(breaches.is_empty(), "{what}:\n  {}", breaches.join("\n  "));
}

/// Every breach that a rule finds in the sources it is about.
fn in_sources(about: impl Fn(&Source) -> bool, rule: impl Fn(&Source) -> Vec<String>) -> Vec<String> {
    Tree::read().sources().filter(|source| about(source)).flat_map(|source| rule(&source)).collect()
}

/// Covers: SR-P6, SR-P7.
#[test]
fn every_edge_between_rooms_leads_downwards() {
    let tree = Tree::read();
    let table = layers::Table::parse(&tree.text("ARCHITECTURE.md"));
    let breaches = ["core", "bindings", "pipeline", "gateway", "benches"]
        .iter()
        .flat_map(|krate| layers::breaches(&tree, &table, krate));
    none("edges that the layers table in ARCHITECTURE.md does not allow", breaches.collect());
}

#[test]
fn a_file_is_a_room_and_a_function_a_screen() {
    none("too long", in_sources(|_| true, rules::too_long));
}

#[test]
fn modules_have_names_that_say_something() {
    none("module files", in_sources(|_| true, rules::badly_named));
}

#[test]
fn every_file_says_what_it_is() {
    none("no `//!` on the first line", in_sources(|_| true, rules::unintroduced));
}

#[test]
fn doc_comments_open_with_their_subject() {
    none("doc comments that open oddly", in_sources(|_| true, prose::odd_openers));
}

#[test]
fn doc_comments_say_more_than_the_name() {
    none("empty doc comments", in_sources(Source::is_product, prose::empty_docs));
}

#[test]
fn public_items_have_docs() {
    none("public items without docs", in_sources(Source::is_product, prose::undocumented));
}

#[test]
fn a_type_name_stands_in_one_module() {
    none("type names in more than one module", prose::shared_type_names(&Tree::read()));
}

#[test]
fn test_names_fit_a_report() {
    none("test names that are too long", in_sources(|_| true, prose::long_test_names));
}

#[test]
fn bindings_are_not_packed_into_tuples() {
    none("packed bindings", in_sources(|_| true, prose::packed_lets));
}

#[test]
fn nothing_is_left_undone_and_no_test_sleeps_or_rests() {
    none("stubs, ignored tests, sleeps", in_sources(|source| !source.is_tidy(), rules::undone));
}

/// Covers: S-14.
#[test]
fn the_binary_codec_has_one_home() {
    let elsewhere = |source: &Source| !source.is_tidy() && source.path != "core/src/protocol/codec.rs";
    none("the binary codec outside its file", in_sources(elsewhere, |source| source.mentions("bincode")));
}

#[test]
fn nothing_names_what_is_not_part_of_the_project() {
    let tree = Tree::read();
    let files = tree.paths().filter(|path| !path.starts_with("tests/tests/tidy"));
    none("words from outside", files.flat_map(|path| rules::foreign_words(path, &tree.text(path))).collect());
}

#[test]
fn documents_name_only_documents_that_exist() {
    let tree = Tree::read();
    let files = tree.paths().filter(|path| !path.starts_with("tests/tests/tidy"));
    none("missing documents", files.flat_map(|path| rules::missing_documents(path, &tree)).collect());
}

#[test]
fn the_changelog_says_what_comes_next() {
    let changelog = Tree::read().text("CHANGELOG.md");
    assert!(changelog.lines().any(|line| line == "## [Unreleased]"), "CHANGELOG.md has no `## [Unreleased]`");
}

#[test]
fn every_cited_requirement_is_in_the_conformance_table() {
    let known = conformance::known(&Tree::read().text("docs/conformance.md"));
    assert!(known.len() > 200, "docs/conformance.md has only {} rows", known.len());
    let unknown = |source: &Source| {
        let cited = conformance::cited(source).into_iter().filter(|(_, id)| !known.contains(id));
        cited.map(|(line, id)| source.at(line, &id)).collect()
    };
    none("cited, but not in docs/conformance.md", in_sources(|source| !source.is_tidy(), unknown));
}

#[test]
fn the_conformance_table_names_the_tests_there_are() {
    let tree = Tree::read();
    let (path, document) = ("docs/conformance.md", tree.text("docs/conformance.md"));
    let anew = conformance::table(&document, &conformance::coverage(&tree));
    if std::env::var_os("BLESS").is_some() {
        tree.write(path, &anew);
    } else {
        assert!(anew == document, "{path} is stale: BLESS=1 cargo nextest run -p turnway-tests --test tidy");
    }
}

/// A route that metrics do not know is counted as `other`.
#[test]
fn every_route_has_its_label() {
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
    assert_eq!(known.pop().as_deref(), Some("other"));
    known.sort();
    assert_eq!(known, routes, "gateway/src/metrics/http.rs names every route there is");
}
