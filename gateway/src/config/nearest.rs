//! Suggests the known name that is most similar to a misspelt one.

/// Maximum edit distance of a suggestion; the distance must also be at most a third of the name's length.
const EDIT_DISTANCE_MAX: usize = 3;

/// Returns the known name nearest to a wrong one, if any is near enough.
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = wrong.to_ascii_lowercase();
    let slips = |name: &str| edit_distance(&wrong, &name.to_ascii_lowercase());
    let near = known.into_iter().map(|name| (slips(name), name)).min()?;
    (near.0 <= EDIT_DISTANCE_MAX.min(wrong.chars().count() / 3)).then_some(near.1)
}

/// Returns `; did you mean "…"?`, or an empty string.
pub fn did_you_mean<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(wrong, known).map(|name| format!("; did you mean {name:?}?")).unwrap_or_default()
}

/// Returns the edit distance: insertions, deletions, changes and swaps of neighbouring letters.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let changed = above[j] + usize::from(a[i] != b[j]);
            let mut least = changed.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_distance_is_counted() {
        for (a, b, count) in [("", "", 0), ("", "abc", 3), ("htpp", "http", 1), ("ca", "abc", 3), ("x", "y", 1)] {
            assert_eq!(edit_distance(a, b), count, "{a} {b}");
            assert_eq!(edit_distance(b, a), count, "{b} {a}");
        }
    }

    #[test]
    fn only_similar_names_are_suggested() {
        let known = ["listen.http", "listen.admin", "log", "store.url"];
        assert_eq!(nearest("listen.htpp", known), Some("listen.http"));
        assert_eq!(nearest("LOGS", known), Some("log"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest("", known), None);
        assert_eq!(did_you_mean("lgo", known), "; did you mean \"log\"?");
    }
}
