//! A matcher whose memory does not depend on how large the classes of a pattern are.
//!
//! A program has one step for a class of characters, like Go's, where the library has one state for each
//! prefix of their UTF-8. So what Go takes has room here. All threads go through the text together, in the order of
//! their priority, so that the first match of the leftmost is found, as in Go. Each visit of a thread is
//! taken from a budget.

use std::collections::HashMap;

use regex_syntax::ast::Ast;
use regex_syntax::hir::{Class, Hir, HirKind, Look, Repetition};

use super::Refused;
use super::steps::{class_of, letters, ranges, runs, steps, written_steps};
use crate::budget::{TooMuchWork, WorkBudget};

/// Most steps of a program, some megabytes with the threads of a search.
pub(super) const STEPS_MAX: usize = 100_000;
/// Steps for which a search makes room in the time of a visit.
const STEPS_PER_VISIT: u64 = 8;
/// What a range of a class weighs that is not of ASCII: the library has several states for it.
const RANGE_WEIGHT: usize = 8;

/// Where a match begins and ends.
pub(super) type Span = (usize, usize);

#[derive(Debug, Clone, Copy)]
enum Step {
    Char(char),
    /// One of the characters of a class, by its place in the list of classes.
    Class(u32),
    /// Goes on at both places, the first one before the second.
    Split(u32, u32),
    Jump(u32),
    Look(Look),
    Match,
    /// An empty class.
    Fail,
}

/// The characters of a class.
#[derive(Debug)]
struct Characters {
    ascii: u128,
    ranges: Box<[(char, char)]>,
}

impl Characters {
    fn new(ranges: &[(char, char)]) -> Self {
        let ascii = (0..128u8).filter(|byte| within(ranges, char::from(*byte)));
        Self {
            ascii: ascii.fold(0, |set, byte| set | 1 << byte),
            ranges: ranges.into(),
        }
    }

    fn has(&self, letter: char) -> bool {
        match letter.is_ascii() {
            true => self.ascii >> u32::from(letter) & 1 == 1,
            false => within(&self.ranges, letter),
        }
    }
}

fn within(ranges: &[(char, char)], letter: char) -> bool {
    let at = ranges.partition_point(|(_, high)| *high < letter);
    ranges.get(at).is_some_and(|(low, _)| *low <= letter)
}

/// See the module.
#[derive(Debug)]
pub(super) struct Program {
    steps: Box<[Step]>,
    classes: Box<[Characters]>,
    weight: usize,
    /// Classes in the pattern.
    written_classes: usize,
}

impl Program {
    /// Returns how many steps the program of a parsed pattern has before its match, without making it.
    ///
    /// # Errors
    /// Returns an error if they are too many, or one of them is not known.
    pub(super) fn check(pattern: &Hir) -> Result<usize, Refused> {
        steps(pattern)
    }

    /// Returns whether the program of a pattern has few enough steps even if each part becomes the steps that are
    /// written. What the library makes of a pattern never has more.
    pub(super) fn surely_fits(pattern: &Ast) -> bool {
        written_steps(pattern) < STEPS_MAX
    }

    /// Creates the program of a parsed pattern.
    ///
    /// # Errors
    /// Returns an error if it has too many steps.
    pub(super) fn of(pattern: &Hir) -> Result<Self, Refused> {
        let mut writer = Writer {
            steps: Vec::with_capacity(steps(pattern)? + 1),
            ..Writer::default()
        };
        writer.add(pattern);
        writer.push(Step::Match);
        let mut classes: Vec<_> = writer.classes.into_iter().collect();
        classes.sort_by_key(|(_, at)| *at);
        Ok(Self {
            steps: writer.steps.into(),
            classes: classes
                .iter()
                .map(|(ranges, _)| Characters::new(ranges))
                .collect(),
            weight: writer.weight,
            written_classes: writer.written_classes,
        })
    }

    /// Returns the number of steps.
    pub(super) fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Returns how many classes of characters the pattern has, equal ones counted each time.
    pub(super) fn classes(&self) -> usize {
        self.written_classes
    }

    /// Returns what the pattern takes in the library: about the number of its states.
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    /// Returns the bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        let ranges: usize = self.classes.iter().map(|class| class.ranges.len()).sum();
        size_of_val(&*self.steps) + size_of_val(&*self.classes) + ranges * size_of::<(char, char)>()
    }

    /// Begins searches in a text.
    ///
    /// # Errors
    /// Returns an error if there is no budget to begin.
    pub(super) fn searches<'s>(
        &'s self,
        text: &'s str,
        budget: &'s WorkBudget,
    ) -> Result<Searches<'s>, TooMuchWork> {
        budget.work(self.steps.len() as u64 / STEPS_PER_VISIT + 1)?;
        let threads = || Threads {
            list: Vec::new(),
            places: vec![0; self.steps.len()],
        };
        Ok(Searches {
            program: self,
            text,
            now: threads(),
            next: threads(),
            stack: Vec::new(),
            budget,
        })
    }
}

#[derive(Default)]
struct Writer {
    steps: Vec<Step>,
    classes: HashMap<Vec<(char, char)>, u32>,
    weight: usize,
    written_classes: usize,
}

impl Writer {
    fn push(&mut self, step: Step) -> usize {
        self.steps.push(step);
        self.weight += 1;
        self.steps.len() - 1
    }

    /// Returns where the next step will be.
    fn here(&self) -> u32 {
        u32::try_from(self.steps.len()).unwrap_or(u32::MAX)
    }

    fn add(&mut self, part: &Hir) {
        match part.kind() {
            HirKind::Empty => {}
            HirKind::Literal(literal) => {
                for letter in letters(literal).chars() {
                    self.push(Step::Char(letter));
                }
            }
            HirKind::Class(class) => self.class(class),
            HirKind::Look(look) => drop(self.push(Step::Look(*look))),
            HirKind::Repetition(repetition) => self.repeat(repetition),
            HirKind::Capture(capture) => self.add(&capture.sub),
            HirKind::Concat(parts) => parts.iter().for_each(|part| self.add(part)),
            HirKind::Alternation(parts) => self.alternatives(parts),
        }
    }

    fn class(&mut self, class: &Class) {
        let ranges = ranges(class);
        let weights = ranges
            .iter()
            .map(|(_, high)| if high.is_ascii() { 1 } else { RANGE_WEIGHT });
        self.weight += weights.sum::<usize>();
        self.written_classes += 1;
        let step = match *ranges {
            [] => Step::Fail,
            [(low, high)] if low == high => Step::Char(low),
            _ => {
                let at = u32::try_from(self.classes.len()).unwrap_or(u32::MAX);
                Step::Class(*self.classes.entry(ranges).or_insert(at))
            }
        };
        self.push(step);
    }

    fn alternatives(&mut self, parts: &[Hir]) {
        let mut ends = Vec::new();
        let runs: Vec<&[Hir]> = runs(parts).collect();
        for (at, run) in runs.iter().enumerate() {
            let is_last = at + 1 == runs.len();
            let split = match is_last {
                true => None,
                false => Some(self.push(Step::Fail)),
            };
            match run {
                [only] => self.add(only),
                several => {
                    self.written_classes += several.len() - 1;
                    self.class(&class_of(several));
                }
            }
            if let Some(split) = split {
                ends.push(self.push(Step::Fail));
                self.steps[split] = Step::Split(split as u32 + 1, self.here());
            }
        }
        let here = self.here();
        for end in ends {
            self.steps[end] = Step::Jump(here);
        }
    }

    fn repeat(&mut self, repetition: &Repetition) {
        let (min, mut part) = (repetition.min, Part::New(&repetition.sub));
        let mut splits = Vec::new();
        match repetition.max {
            Some(max) => {
                for at in 0..max {
                    if at >= min {
                        splits.push(self.push(Step::Fail));
                    }
                    part = self.again(part);
                }
            }
            // As Go: a part that may be empty is tried once more only after it has taken a character.
            None => {
                for _ in 1..min {
                    part = self.again(part);
                }
                if min == 0 {
                    splits.push(self.push(Step::Fail));
                }
                let begin = self.here();
                self.again(part);
                let end = self.push(Step::Fail);
                self.steps[end] = split(repetition.greedy, begin, self.here());
            }
        }
        let here = self.here();
        for at in splits {
            self.steps[at] = split(repetition.greedy, at as u32 + 1, here);
        }
    }

    /// Adds a part once more. All but the first time that is a copy of its steps.
    fn again<'h>(&mut self, part: Part<'h>) -> Part<'h> {
        let (from, weight) = (self.steps.len(), self.weight);
        match part {
            Part::New(sub) => {
                self.add(sub);
                Part::Known {
                    from,
                    to: self.steps.len(),
                    weight: self.weight - weight,
                }
            }
            Part::Known {
                from: known,
                to,
                weight: own,
            } => {
                let moved = |at: u32| at + (from - known) as u32;
                for at in known..to {
                    let step = match self.steps[at] {
                        Step::Split(first, second) => Step::Split(moved(first), moved(second)),
                        Step::Jump(to) => Step::Jump(moved(to)),
                        step => step,
                    };
                    self.push(step);
                }
                self.weight = weight + own;
                part
            }
        }
    }
}

/// A part that is repeated.
#[derive(Clone, Copy)]
enum Part<'h> {
    New(&'h Hir),
    /// Its steps, and what they weigh.
    Known {
        from: usize,
        to: usize,
        weight: usize,
    },
}

/// Returns the step that goes on inside a repetition or behind it.
fn split(greedy: bool, inside: u32, behind: u32) -> Step {
    match greedy {
        true => Step::Split(inside, behind),
        false => Step::Split(behind, inside),
    }
}

/// Threads in the order of their priority. No two of them are at one step.
struct Threads {
    /// The step of each, and where its match begins.
    list: Vec<(u32, usize)>,
    /// Where each step is in the list, if it is.
    places: Vec<u32>,
}

impl Threads {
    /// Adds a thread; returns false if there is one at this step.
    fn add(&mut self, step: u32, start: usize) -> bool {
        let place = self.places[step as usize] as usize;
        if self
            .list
            .get(place)
            .is_some_and(|(known, _)| *known == step)
        {
            return false;
        }
        self.places[step as usize] = self.list.len() as u32;
        self.list.push((step, start));
        true
    }
}

/// Searches in one text.
pub(super) struct Searches<'s> {
    program: &'s Program,
    text: &'s str,
    now: Threads,
    next: Threads,
    stack: Vec<u32>,
    budget: &'s WorkBudget,
}

impl Searches<'_> {
    /// Returns the first match that begins at `from` or later. With `any`, it returns as soon as there is one, whose
    /// end then means nothing.
    ///
    /// # Errors
    /// Returns an error if the budget is spent.
    pub(super) fn find(&mut self, from: usize, any: bool) -> Result<Option<Span>, TooMuchWork> {
        let mut found = None;
        self.now.list.clear();
        let mut at = from;
        loop {
            if found.is_none() {
                follow(
                    self.program,
                    self.text,
                    &mut self.now,
                    &mut self.stack,
                    (0, at, at),
                );
            } else if self.now.list.is_empty() {
                return Ok(found);
            }
            self.budget.work(self.now.list.len() as u64 + 1)?;
            let letter = self.text[at..].chars().next();
            let after = at + letter.map_or(0, char::len_utf8);
            self.next.list.clear();
            for (step, start) in &self.now.list {
                let takes = match (&self.program.steps[*step as usize], letter) {
                    (Step::Match, _) => {
                        found = Some((*start, at));
                        // Those behind it have a lower priority.
                        break;
                    }
                    (Step::Char(wanted), Some(letter)) => *wanted == letter,
                    (Step::Class(class), Some(letter)) => {
                        self.program.classes[*class as usize].has(letter)
                    }
                    _ => false,
                };
                if takes {
                    let begin = (*step + 1, *start, after);
                    follow(
                        self.program,
                        self.text,
                        &mut self.next,
                        &mut self.stack,
                        begin,
                    );
                }
            }
            if letter.is_none() || any && found.is_some() {
                return Ok(found);
            }
            std::mem::swap(&mut self.now, &mut self.next);
            at = after;
        }
    }
}

/// Adds the threads that a thread becomes without taking a character. `begin` has its step, where its match begins,
/// and where it is in the text.
fn follow(
    program: &Program,
    text: &str,
    threads: &mut Threads,
    stack: &mut Vec<u32>,
    begin: (u32, usize, usize),
) {
    let (step, start, at) = begin;
    stack.push(step);
    while let Some(step) = stack.pop() {
        if !threads.add(step, start) {
            continue;
        }
        match program.steps[step as usize] {
            Step::Jump(to) => stack.push(to),
            Step::Split(first, second) => stack.extend([second, first]),
            Step::Look(look) if holds(look, text, at) == Some(true) => stack.push(step + 1),
            _ => {}
        }
    }
}

/// Returns whether an assertion holds at a place in the text; `None` for one that Go's syntax does not have.
pub(super) fn holds(look: Look, text: &str, at: usize) -> Option<bool> {
    let (before, after) = text.as_bytes().split_at(at);
    let (before, after) = (before.last(), after.first());
    let is_word =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    Some(match look {
        Look::Start => before.is_none(),
        Look::End => after.is_none(),
        Look::StartLF => before.is_none_or(|byte| *byte == b'\n'),
        Look::EndLF => after.is_none_or(|byte| *byte == b'\n'),
        Look::WordAscii => is_word(before) != is_word(after),
        Look::WordAsciiNegate => is_word(before) == is_word(after),
        _ => return None,
    })
}
