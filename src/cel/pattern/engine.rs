//! Compiled patterns, and how they are shared and forgotten.
//!
//! A tenant may have tens of thousands of patterns, so whoever has one keeps its text, and the compiled form is kept
//! by one cache of the process with a bound in bytes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;
use regex::{Regex, RegexBuilder};
use regex_syntax::ParserBuilder;

use super::program::{Program, Span, TooLong};
use super::{Refused, translate};

/// Most groups in groups; regex-syntax counts other nestings too.
const NEST_MAX: u32 = 2_000;
/// The weight of a program up to which the library has it too, which then takes up to some hundred KiB.
const LIBRARY_WEIGHT_MAX: usize = 8_000;
/// The work of a search, as letters times steps, up to which the library does it: it has no limit of its own.
const LIBRARY_WORK_MAX: usize = 100_000_000;
/// Bytes of each lazily built table of the library.
const LIBRARY_TABLE_BYTES: usize = 64 << 10;
/// Bytes of the library's form of a pattern without states, and of a state: measured with 10 000 patterns of
/// usual kinds, of which each took 8 to 24 KiB.
const LIBRARY_BYTES: usize = 8 << 10;
const LIBRARY_STATE_BYTES: usize = 32;
/// Bytes of compiled patterns that are kept.
const CACHE_BYTES_MAX: usize = 16 << 20;

static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Mutex::default);

/// A pattern that is compiled when it is needed.
#[derive(Debug)]
pub struct Pattern {
    text: Box<str>,
    engine: Mutex<Weak<Engine>>,
}

impl Pattern {
    /// Creates it from its text, which is not read yet.
    pub fn new(text: &str) -> Self {
        Self {
            text: text.into(),
            engine: Mutex::default(),
        }
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the compiled form.
    ///
    /// # Errors
    /// Returns why the pattern is refused.
    pub fn engine(&self) -> Result<Arc<Engine>, Refused> {
        let mut known = self.engine.lock();
        if let Some(engine) = known.upgrade() {
            return Ok(engine);
        }
        let engine = shared(&self.text)?;
        *known = Arc::downgrade(&engine);
        Ok(engine)
    }
}

/// A compiled pattern.
#[derive(Debug)]
pub struct Engine {
    program: Program,
    /// The library's form, which is the fastest, of a pattern that does not take much memory in it.
    library: Option<Regex>,
}

impl Engine {
    fn bytes(&self) -> usize {
        let states = self.program.weight() * LIBRARY_STATE_BYTES;
        self.program.bytes() + self.library.as_ref().map_or(0, |_| LIBRARY_BYTES + states)
    }

    /// Returns the library's form if it does the work within bounds.
    fn library(&self, text: &str) -> Option<&Regex> {
        let work = text.len().saturating_mul(self.program.steps());
        self.library.as_ref().filter(|_| work <= LIBRARY_WORK_MAX)
    }

    /// Returns whether the text has a match.
    ///
    /// # Errors
    /// Returns an error if that takes too much work.
    pub fn is_match(&self, text: &str) -> Result<bool, TooLong> {
        match self.library(text) {
            Some(library) => Ok(library.is_match(text)),
            None => Ok(self.program.searches(text).find(0, true)?.is_some()),
        }
    }

    /// Returns the first `count` matches.
    ///
    /// # Errors
    /// Returns an error if that takes too much work.
    pub fn find<'t>(&self, text: &'t str, count: usize) -> Result<Vec<&'t str>, TooLong> {
        match self.library(text) {
            Some(library) => {
                let found = library.find_iter(text).take(count);
                Ok(found.map(|found| found.as_str()).collect())
            }
            None => self.spans(text, count).map(|spans| {
                let spans = spans.into_iter();
                spans.map(|(start, end)| &text[start..end]).collect()
            }),
        }
    }

    /// Does what the library's iterator does: an empty match where the one before it ended is none.
    fn spans(&self, text: &str, count: usize) -> Result<Vec<Span>, TooLong> {
        let mut searches = self.program.searches(text);
        let (mut spans, mut from, mut last) = (Vec::new(), 0, None);
        while spans.len() < count
            && from <= text.len()
            && let Some((start, end)) = searches.find(from, false)?
        {
            from = end;
            if start == end {
                from += text[end..].chars().next().map_or(1, char::len_utf8);
            }
            if start < end || last != Some(end) {
                spans.push((start, end));
            }
            last = Some(end);
        }
        Ok(spans)
    }
}

/// Compiles a pattern.
///
/// # Errors
/// Returns why the pattern is refused.
pub fn compile(pattern: &str) -> Result<Engine, Refused> {
    let translated = translate(pattern)?;
    let refused = |why: String| Refused::Library(why.replace('\n', " "));
    let parsed = ParserBuilder::new()
        .nest_limit(NEST_MAX)
        .build()
        .parse(&translated);
    let program = Program::of(&parsed.map_err(|error| refused(error.to_string()))?)?;
    let library = (program.weight() <= LIBRARY_WEIGHT_MAX).then(|| {
        let mut builder = RegexBuilder::new(&translated);
        builder.nest_limit(NEST_MAX);
        builder.dfa_size_limit(LIBRARY_TABLE_BYTES);
        // What the parser takes, the library refuses only for its size.
        builder.build().ok()
    });
    let library = library.flatten();
    Ok(Engine { program, library })
}

/// Returns the compiled form of a pattern, which others may have too.
///
/// # Errors
/// Returns why the pattern is refused.
pub(crate) fn shared(pattern: &str) -> Result<Arc<Engine>, Refused> {
    if let Some(engine) = CACHE.lock().known.get(pattern) {
        return Ok(Arc::clone(engine));
    }
    let engine = Arc::new(compile(pattern)?);
    CACHE.lock().keep(pattern, &engine);
    Ok(engine)
}

/// The patterns that were compiled last.
#[derive(Debug, Default)]
struct Cache {
    known: HashMap<Arc<str>, Arc<Engine>>,
    order: VecDeque<Arc<str>>,
    bytes: usize,
}

impl Cache {
    fn keep(&mut self, pattern: &str, engine: &Arc<Engine>) {
        let text: Arc<str> = pattern.into();
        if self
            .known
            .insert(Arc::clone(&text), Arc::clone(engine))
            .is_some()
        {
            // Another thread has compiled it meanwhile, and both forms are as large.
            return;
        }
        self.bytes += pattern.len() + engine.bytes();
        self.order.push_back(text);
        while self.bytes > CACHE_BYTES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            if let Some(engine) = self.known.remove(&oldest) {
                self.bytes -= oldest.len() + engine.bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The library's own answers, which both forms have to give.
    fn agree(pattern: &str, text: &str) {
        let engine = compile(pattern).expect(pattern);
        let translated = translate(pattern).expect(pattern);
        let library = Regex::new(&translated).expect(pattern);
        let found: Vec<_> = library
            .find_iter(text)
            .map(|found| (found.start(), found.end()))
            .collect();
        assert_eq!(
            engine.spans(text, usize::MAX),
            Ok(found.clone()),
            "{pattern} {text:?}"
        );
        let any = engine.program.searches(text).find(0, true);
        assert_eq!(
            any.map(|found| found.is_some()),
            Ok(!found.is_empty()),
            "{pattern} {text:?}"
        );
    }

    #[test]
    fn the_program_finds_what_the_library_finds() {
        let texts = [
            "",
            "a",
            "ab",
            "aab b\nabc",
            "äöü aß1_",
            "foo.bar-baz",
            "aaaa",
            "x\n\ny",
        ];
        for pattern in [
            "",
            "a",
            "a*",
            "a+?",
            "(a|ab)(c|bcd)?",
            "a|",
            "(?:)|a",
            "^a",
            "b$",
            r"(?m)^\w+$",
            r"\bab",
            r"\Ba",
            r"\p{L}+",
            r"[^a]",
            "a{2,3}",
            "a{2,3}?",
            "(a*)+",
            "(a|b)*?b",
            "(?i)ÄÖ",
            "(?s).",
            ".",
            r"[\d_-]+",
            "x*",
            "(|a)+",
            "(a?){3}",
        ] {
            texts.iter().for_each(|text| agree(pattern, text));
        }
    }

    proptest::proptest! {
        #[test]
        fn the_program_finds_what_the_library_finds_in_any_text(
            pattern in r"(\(?(\(\?:)?[ab.é\^$][*+?]?(\||\{1,2\})?\)?){1,5}",
            text in "[abé\n]{0,12}",
        ) {
            if compile(&pattern).is_ok() {
                agree(&pattern, &text);
            }
        }
    }

    #[test]
    fn patterns_of_large_classes_take_little_memory() {
        for (pattern, text) in [
            (r"^\p{L}{0,253}$", "äbc"),
            (r"^(\p{L}{1,63}\.){0,15}$", "ab.ç."),
            (r"^[\p{L}\p{N}_-]{1,1000}$", "a-1"),
        ] {
            let engine = compile(pattern).expect("Go takes it");
            assert!(
                engine.library.is_none() && engine.bytes() < 200_000,
                "{pattern}: {}",
                engine.bytes()
            );
            assert_eq!(engine.is_match(text), Ok(true), "{pattern}");
            assert_eq!(engine.is_match("ab c"), Ok(false), "{pattern}");
        }
    }

    #[test]
    fn what_is_kept_of_many_patterns_has_a_bound() {
        let patterns: Vec<_> = (0..3_000)
            .map(|at| Pattern::new(&format!(r"^\p{{L}}+{at}$")))
            .collect();
        for pattern in &patterns {
            let engine = pattern.engine().expect("Go takes it");
            assert!(
                engine
                    .is_match(&format!(
                        "é{}",
                        &pattern.text()[7..pattern.text().len() - 1]
                    ))
                    .is_ok()
            );
        }
        let cache = CACHE.lock();
        assert!(cache.bytes <= CACHE_BYTES_MAX, "{}", cache.bytes);
        assert_eq!(cache.known.len(), cache.order.len());
        drop(cache);
        let alive = patterns
            .iter()
            .filter(|pattern| pattern.engine.lock().strong_count() > 0);
        assert!(alive.count() < 2_000);
    }

    #[test]
    fn a_search_that_would_take_minutes_ends_with_an_error() {
        // Each letter may begin each of a thousand ways.
        let engine = compile("a[ab]{999}c").expect("Go takes it");
        let text = "ab".repeat(1_500_000);
        assert_eq!(engine.is_match(&text), Err(TooLong));
        assert_eq!(engine.is_match(&text[..10_000]), Ok(false));
    }
}
