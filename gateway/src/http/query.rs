//! Parses the query string of a request: each parameter at most once, each value within its range.
use crate::http::problem::HttpProblem;
use axum::extract;
use http::Uri;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use turnway_core::limits;
use turnway_core::protocol::pattern::Pattern;

/// Default number of facts, messages or sessions in an answer.
pub const LIMIT_DEFAULT: usize = 50;
/// Maximum number of them: an answer is built in memory before it is sent.
pub const LIMIT_MAX: usize = 500;

/// Largest integer of the protocol: larger ones are not exact in clients that use doubles.
const NUMBER_MAX: u64 = (1 << 53) - 1;

/// The query parameters of one request. Unknown parameters are ignored.
#[derive(Debug)]
pub struct HttpQuery(BTreeMap<String, String>);

impl HttpQuery {
    /// Parses the query of a URI. Fails if a parameter is repeated.
    pub fn parse(uri: &Uri) -> Result<Self, HttpProblem> {
        let bad = |_| HttpProblem::invalid("malformed query string: expected name=value&…");
        let extract::Query(pairs) = extract::Query::<Vec<(String, String)>>::try_from_uri(uri).map_err(bad)?;
        let count = pairs.len();
        let query: BTreeMap<String, String> = pairs.into_iter().collect();
        if query.len() == count { Ok(Self(query)) } else { Err(HttpProblem::invalid("a query parameter is repeated")) }
    }

    /// Returns a parameter's text, if present.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns the text of a parameter that must be present.
    pub fn required_text(&self, name: &str) -> Result<&str, HttpProblem> {
        self.text(name).ok_or_else(|| HttpProblem::invalid(format!("query parameter missing: {name}")))
    }

    /// Returns a parameter as a whole number, if present.
    pub fn number(&self, name: &'static str) -> Result<Option<u64>, HttpProblem> {
        self.number_within(name, 0..=NUMBER_MAX)
    }

    /// Returns the maximum number of items in the answer.
    pub fn limit(&self) -> Result<usize, HttpProblem> {
        let limit = self.number_within("limit", 1..=LIMIT_MAX as u64)?;
        Ok(limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(LIMIT_DEFAULT))
    }

    /// Returns the comma-separated patterns of `types`; without the parameter, one pattern that matches everything.
    pub fn types(&self) -> Result<Vec<Pattern>, HttpProblem> {
        let bad = |why: String| HttpProblem::invalid(format!("types: {why}"));
        let parts: Vec<&str> = self.text("types").unwrap_or(">").split(',').collect();
        if parts.len() > limits::SUBSCRIBE_TYPES_MAX {
            return Err(bad(format!("at most {} patterns", limits::SUBSCRIBE_TYPES_MAX)));
        }
        let parse = |part: &str| Pattern::parse(part).map_err(|why| bad(why.to_string()));
        parts.into_iter().map(parse).collect()
    }

    fn number_within(&self, name: &'static str, range: RangeInclusive<u64>) -> Result<Option<u64>, HttpProblem> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let number = text.parse().ok().filter(|number| plain && range.contains(number));
        let (first, last) = range.into_inner();
        number.map(Some).ok_or_else(|| HttpProblem::invalid(format!("{name}: expected {first} to {last}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Result<HttpQuery, HttpProblem> {
        HttpQuery::parse(&format!("/x?{text}").parse().expect("a URI"))
    }

    #[test]
    fn query_parameters_are_validated_and_unique() {
        let good = query("after_seq=7&types=run.*,user.message&other=%20").expect("a query");
        assert_eq!((good.number("after_seq"), good.number("before")), (Ok(Some(7)), Ok(None)));
        assert_eq!((good.limit(), good.types().map(|types| types.len())), (Ok(LIMIT_DEFAULT), Ok(2)));
        assert_eq!(query("limit=500").expect("a query").limit(), Ok(LIMIT_MAX));
        assert!(query("a=1&a=1").is_err());
        for bad in ["", "-1", "+1", "1.0", "x", "%31%00", "9007199254740992", "99999999999999999999"] {
            assert!(query(&format!("n={bad}")).expect("a query").number("n").is_err(), "{bad}");
        }
        for bad in ["limit=0", "limit=501"] {
            assert!(query(bad).expect("a query").limit().is_err(), "{bad}");
        }
        let many = format!("types={}", "a,".repeat(33));
        for bad in ["types=", "types=a..b", "types=a,,b", &many] {
            assert!(query(bad).expect("a query").types().is_err(), "{bad}");
        }
    }
}
