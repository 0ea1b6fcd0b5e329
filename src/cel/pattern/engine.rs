//! Compiled patterns, and how they are shared and forgotten.
//!
//! A tenant may have tens of thousands of patterns, so whoever has one keeps its text, and the compiled form is kept
//! by one cache of the process with a bound in bytes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock, OnceLock, Weak};

use parking_lot::Mutex;
use regex::{Regex, RegexBuilder};
use regex_syntax::ast::parse::ParserBuilder as SyntaxBuilder;
use regex_syntax::hir::Hir;
use regex_syntax::{Error, ParserBuilder};

use super::program::{Program, Span};
use super::{Failed, Refused, Translation};
use crate::budget::{TooMuchWork, WorkBudget};

/// Most groups in groups; regex-syntax counts other nestings too.
const NEST_MAX: u32 = 2_000;
/// The weight of a program up to which the library has it too, which then takes up to some hundred KiB.
const LIBRARY_WEIGHT_MAX: usize = 8_000;
/// Bytes of each lazily built table of the library.
const LIBRARY_TABLE_BYTES: usize = 64 << 10;
/// Bytes of the library's form of a pattern without states, and of a state: measured with 10 000 patterns of
/// usual kinds, of which each took 8 to 24 KiB.
const LIBRARY_BYTES: usize = 8 << 10;
const LIBRARY_STATE_BYTES: usize = 32;
/// What the library does for a state when it makes its form, in letters times steps.
const LIBRARY_STATE_WORK: usize = 10;
/// What it takes to parse a pattern, as visits, beside its text and its steps.
const PARSE_WORK: usize = 4_000;
/// What it takes to parse a class of characters if letters may stand for each other, as visits, beside what each of
/// its characters takes.
const FOLDED_CLASS_WORK: usize = 1_000;
/// Characters of such a class that are folded in the time of a visit.
const FOLDED_PER_VISIT: u64 = 2;
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

    /// Returns whether a text has a match.
    ///
    /// # Errors
    /// Returns why the pattern is refused, or that the budget is spent.
    pub fn is_match(&self, text: &str, budget: &WorkBudget) -> Result<bool, Failed> {
        Ok(self.engine(budget)?.is_match(text, budget)?)
    }

    /// Returns the compiled form.
    pub(super) fn engine(&self, budget: &WorkBudget) -> Result<Arc<Engine>, Failed> {
        let mut known = self.engine.lock();
        if let Some(engine) = known.upgrade() {
            return Ok(engine);
        }
        let engine = shared(&self.text, budget)?;
        *known = Arc::downgrade(&engine);
        Ok(engine)
    }
}

/// A compiled pattern.
#[derive(Debug)]
pub struct Engine {
    program: Program,
    /// The pattern in the library's syntax, until its form is made.
    translated: Box<str>,
    /// The library's form, which is the fastest, of a pattern that does not take much memory in it.
    library: OnceLock<Option<Regex>>,
}

impl Engine {
    /// Returns the bytes that it takes with the library's form.
    fn bytes(&self) -> usize {
        let library = match self.suits_library() {
            true => LIBRARY_BYTES + self.program.weight() * LIBRARY_STATE_BYTES,
            false => 0,
        };
        self.program.bytes() + self.translated.len() + library
    }

    /// Returns what it took to compile it, as visits.
    fn compile_work(&self) -> u64 {
        let classes = match may_fold(&self.translated) {
            true => self.program.classes() * FOLDED_CLASS_WORK,
            false => 0,
        };
        (PARSE_WORK + classes + self.translated.len() + self.program.steps()) as u64
    }

    fn suits_library(&self) -> bool {
        self.program.weight() <= LIBRARY_WEIGHT_MAX
    }

    /// Returns the library's form if it may do the work.
    ///
    /// `searches` is how often it may begin anew in the text.
    fn library(&self, text: &str, searches: usize, budget: &WorkBudget) -> Option<&Regex> {
        let work = text.len().saturating_mul(self.program.steps());
        let work = work.saturating_mul(searches.min(text.len() + 1));
        let form = match self.library.get() {
            None => self.program.weight() * LIBRARY_STATE_WORK,
            Some(_) => 0,
        };
        let work = u64::try_from(work.saturating_add(form)).unwrap_or(u64::MAX);
        if !self.suits_library() || !budget.library(work) {
            return None;
        }
        let form = self.library.get_or_init(|| {
            let mut builder = RegexBuilder::new(&self.translated);
            builder.nest_limit(NEST_MAX);
            builder.dfa_size_limit(LIBRARY_TABLE_BYTES);
            // What the parser takes, the library refuses only for its size.
            builder.build().ok()
        });
        form.as_ref()
    }

    /// Returns whether the text has a match.
    ///
    /// # Errors
    /// Returns an error if that takes too much work.
    pub fn is_match(&self, text: &str, budget: &WorkBudget) -> Result<bool, TooMuchWork> {
        match self.library(text, 1, budget) {
            Some(library) => Ok(library.is_match(text)),
            None => Ok(self
                .program
                .searches(text, budget)?
                .find(0, true)?
                .is_some()),
        }
    }

    /// Returns the first `count` matches.
    ///
    /// # Errors
    /// Returns an error if that takes too much work.
    pub fn find<'t>(
        &self,
        text: &'t str,
        count: usize,
        budget: &WorkBudget,
    ) -> Result<Vec<&'t str>, TooMuchWork> {
        match self.library(text, count, budget) {
            Some(library) => {
                let found = library.find_iter(text).take(count);
                Ok(found.map(|found| found.as_str()).collect())
            }
            None => self.spans(text, count, budget).map(|spans| {
                let spans = spans.into_iter();
                spans.map(|(start, end)| &text[start..end]).collect()
            }),
        }
    }

    /// Does what the library's iterator does: an empty match where the one before it ended is none.
    fn spans(
        &self,
        text: &str,
        count: usize,
        budget: &WorkBudget,
    ) -> Result<Vec<Span>, TooMuchWork> {
        let mut searches = self.program.searches(text, budget)?;
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

/// Reads a pattern, without the work of compiling it: the time depends on the length of its text alone.
///
/// # Errors
/// Returns why the pattern is refused.
pub fn check(pattern: &str) -> Result<(), Refused> {
    if pattern.is_empty() {
        return Ok(());
    }
    let translated = Translation::of(pattern)?.text;
    let mut syntax = SyntaxBuilder::new();
    let parsed = syntax.nest_limit(NEST_MAX).build().parse(&translated);
    if Program::surely_fits(&parsed.map_err(|error| refused(&Error::from(error)))?) {
        return Ok(());
    }
    // What alternatives have in common is written once in the end. To see that, the classes have to be made.
    let has_long_classes = ["\\p", "\\P"].iter().any(|it| translated.contains(it));
    if has_long_classes || may_fold(&translated) {
        return Err(Refused::Size);
    }
    parse(&translated).and_then(|parsed| Program::check(&parsed).map(drop))
}

/// Returns whether letters may stand for each other in a pattern in the library's syntax.
fn may_fold(translated: &str) -> bool {
    translated.split("(?").skip(1).any(|group| {
        let flags = group.split([':', ')', '<']).next();
        flags.is_some_and(|flags| flags.contains('i'))
    })
}

/// Parses a pattern in the library's syntax.
fn parse(translated: &str) -> Result<Hir, Refused> {
    let parsed = ParserBuilder::new()
        .nest_limit(NEST_MAX)
        .build()
        .parse(translated);
    parsed.map_err(|error| refused(&error))
}

fn refused(error: &Error) -> Refused {
    Refused::Library(error.to_string().replace('\n', " "))
}

/// Compiles a pattern.
///
/// # Errors
/// Returns why the pattern is refused.
pub fn compile(pattern: &str) -> Result<Engine, Refused> {
    compile_translated(Translation::of(pattern)?.text)
}

fn compile_translated(translated: String) -> Result<Engine, Refused> {
    Ok(Engine {
        program: Program::of(&parse(&translated)?)?,
        translated: translated.into(),
        library: OnceLock::new(),
    })
}

/// Returns the compiled form of a pattern, which others may have too.
///
/// # Errors
/// Returns why the pattern is refused, or that there is no budget to compile it.
pub(crate) fn shared(pattern: &str, budget: &WorkBudget) -> Result<Arc<Engine>, Failed> {
    if let Some(engine) = CACHE.lock().known.get(pattern) {
        return Ok(Arc::clone(engine));
    }
    let translation = Translation::of(pattern)?;
    if may_fold(&translation.text) {
        // One pattern can take seconds, so this is taken before.
        budget.work(translation.class_letters / FOLDED_PER_VISIT)?;
    }
    let engine = Arc::new(compile_translated(translation.text)?);
    CACHE.lock().keep(pattern, &engine);
    budget.work(engine.compile_work())?;
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
    use super::super::translate;
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
            engine.spans(text, usize::MAX, &WorkBudget::default()),
            Ok(found.clone()),
            "{pattern} {text:?}"
        );
        let budget = WorkBudget::default();
        let any = engine.program.searches(text, &budget);
        let any = any.and_then(|mut searches| searches.find(0, true));
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
            "(?i)(?:B|1|é|foo|x|[.-]|\n|ab)+",
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
            let budget = WorkBudget::default();
            assert_eq!(engine.is_match(text, &budget), Ok(true), "{pattern}");
            assert_eq!(engine.is_match("ab c", &budget), Ok(false), "{pattern}");
            assert!(
                engine.library.get().is_none() && engine.bytes() < 200_000,
                "{pattern}: {}",
                engine.bytes()
            );
        }
    }

    #[test]
    fn what_is_kept_of_many_patterns_has_a_bound() {
        let patterns: Vec<_> = (0..3_000)
            .map(|at| Pattern::new(&format!(r"^\p{{L}}+{at}$")))
            .collect();
        for pattern in &patterns {
            let number = &pattern.text()[7..pattern.text().len() - 1];
            let found = pattern.is_match(&format!("é{number}"), &WorkBudget::default());
            assert_eq!(found, Ok(true));
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
        let is_match = |text| engine.is_match(text, &WorkBudget::default());
        assert_eq!(is_match(&text), Err(TooMuchWork));
        assert_eq!(is_match(&text[..10_000]), Ok(false));
    }

    #[test]
    fn searches_that_would_take_minutes_together_end_with_an_error() {
        let many = format!("^(?:{}){{1000}}c$", "a?".repeat(48));
        let (slow, text) = (Pattern::new(&many), "a".repeat(1_900));
        let budget = WorkBudget::default();
        let searches = (0..1_500).map(|_| slow.is_match(&text, &budget));
        let first_error = searches.map_while(Result::ok).count();
        assert!(first_error < 10, "{first_error}");
        assert_eq!(slow.is_match("a", &budget), Err(TooMuchWork.into()));
    }

    #[test]
    fn patterns_that_would_take_minutes_to_compile_end_with_an_error() {
        let budget = WorkBudget::default();
        let part = "a?".repeat(48);
        let patterns = (0..100_000).map(|at| Pattern::new(&format!("^(?:{part}){{1000}}{at}$")));
        let compiled = patterns.map_while(|pattern| pattern.is_match("", &budget).ok());
        assert!(compiled.count() < 3_000);
    }

    #[test]
    fn a_pattern_is_checked_as_it_is_compiled() {
        for pattern in [
            "a{2,}",
            "(a|b|)*",
            "(?:a{0,3}b?){30}",
            "(a{500}){2}",
            r"\b|^$",
            "é+?x{0}",
        ] {
            let parsed = parse(&translate(pattern).expect(pattern)).expect(pattern);
            let program = Program::of(&parsed).expect(pattern);
            assert_eq!(
                Program::check(&parsed),
                Ok(program.steps() - 1),
                "{pattern}"
            );
        }
        let large = format!("(?:{}){{1000}}", "a?".repeat(50));
        assert_eq!(check(&large), Err(Refused::Size));
        assert_eq!(compile(&large).err(), Some(Refused::Size));
    }

    #[test]
    fn what_the_check_takes_can_be_compiled() {
        let letters = ('a'..='z').map(String::from).collect::<Vec<_>>().join("|");
        let alternatives = format!("^(?:{letters}|{letters}){{1000}}$");
        let folded = format!("(?i){alternatives}");
        let digits = "1|2|3|é|".repeat(10);
        let mixed = format!("(?i)^(?:{digits}{letters}|{letters}){{1000}}$");
        let words = format!("(?i)^(?:{}ab){{1000}}$", "ab|c|".repeat(20));
        let (many, too_many) = (r"\pL".repeat(1_000), r"\pL".repeat(1_001));
        let (long, too_long) = ("[ab]".repeat(16_000), "[ab]".repeat(17_000));
        for (pattern, is_good) in [
            (r"(?i)\pL\PL[^\pN\P{Greek}]", true),
            (r"(?i)(?:a|b)\p{Nope}", false),
            (r"\p{Cs}\x{D800}[\x{D800}]", true),
            ("(?P<n>a)(?P<n>b)", false),
            // As it is written it has more steps than a program may have.
            (alternatives.as_str(), true),
            (folded.as_str(), true),
            (mixed.as_str(), true),
            (words.as_str(), false),
            (many.as_str(), true),
            (too_many.as_str(), false),
            (long.as_str(), true),
            (too_long.as_str(), false),
        ] {
            let shown: String = pattern.chars().take(40).collect();
            assert_eq!(check(pattern).is_ok(), is_good, "{shown}");
            assert!(!is_good || compile(pattern).is_ok(), "{shown}");
        }
    }

    #[test]
    fn a_text_of_opening_brackets_and_braces_is_read_once() {
        for part in ["{", "a{1,", "a{11", "[[:", "[:"] {
            let text = part.repeat(60_000 / part.len());
            // What is said about it is of no interest: to search to its end for each of them would take an hour.
            let _ = check(&text);
        }
        for (pattern, text) in [
            ("[[:]", ":"),
            ("[[:]]", "[]"),
            ("[[:alpha:][:]", "q"),
            ("a{{2}", "a{{"),
            ("a{1,{2}", "a{1,,"),
            ("a{2,x}", "a{2,x}"),
        ] {
            let engine = compile(pattern).expect(pattern);
            let found = engine.is_match(text, &WorkBudget::default());
            assert_eq!(found, Ok(true), "{pattern}");
        }
        for (pattern, named) in [("[[:]:]]", "[:]:]"), ("[[:a]:]", "[:a]:]")] {
            let class = Refused::Class(named.to_owned());
            assert_eq!(check(pattern), Err(class), "{pattern}");
        }
    }

    #[test]
    fn one_pattern_whose_classes_are_very_large_is_not_compiled() {
        for class in [
            r"[\x00-\x{10FFFF}]",
            r"[a\D]",
            r"[a\W]",
            r"[a[:^alpha:]]",
            r"[a\P{Lu}]",
        ] {
            let every = class.repeat(1_000);
            let pattern = Pattern::new(&format!("(?i){every}"));
            let found = pattern.is_match("", &WorkBudget::default());
            assert_eq!(found, Err(TooMuchWork.into()), "{class}");
        }
    }
}
