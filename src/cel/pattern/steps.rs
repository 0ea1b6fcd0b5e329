//! How many steps the parts of a pattern become, without making them.

use std::borrow::Cow;

use regex_syntax::ast::{Ast, RepetitionKind, RepetitionRange};
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Literal};

use super::Refused;
use super::program::{STEPS_MAX, holds};

/// Returns how many steps the program of a pattern has before its match.
///
/// # Errors
/// Returns an error if they are too many, or one of them is not known.
pub(super) fn steps(pattern: &Hir) -> Result<usize, Refused> {
    let sum = |parts: &[Hir]| {
        let add = |sum: usize, part| Ok(sum.saturating_add(steps(part)?));
        parts.iter().try_fold(0, add)
    };
    let count = match pattern.kind() {
        HirKind::Empty => 0,
        HirKind::Literal(literal) => letters(literal).chars().count(),
        HirKind::Class(_) => 1,
        HirKind::Look(look) if holds(*look, "", 0).is_none() => {
            return Err(Refused::Library(format!("{look:?} is not known")));
        }
        HirKind::Look(_) => 1,
        HirKind::Repetition(repetition) => {
            repeated(steps(&repetition.sub)?, repetition.min, repetition.max)
        }
        HirKind::Capture(capture) => steps(&capture.sub)?,
        HirKind::Concat(parts) => sum(parts)?,
        HirKind::Alternation(parts) => {
            let mut count = 0_usize;
            for run in runs(parts) {
                let own = match run {
                    [only] => steps(only)?,
                    _ => 1,
                };
                count = count.saturating_add(own).saturating_add(2);
            }
            count.saturating_sub(2)
        }
    };
    match count < STEPS_MAX {
        true => Ok(count),
        false => Err(Refused::Size),
    }
}

pub(super) fn letters(literal: &Literal) -> Cow<'_, str> {
    String::from_utf8_lossy(&literal.0)
}

/// Returns the alternatives, those together that follow each other and are one character each: they become one step,
/// as in Go.
pub(super) fn runs(parts: &[Hir]) -> impl Iterator<Item = &[Hir]> {
    let is_letter = |part: &Hir| match part.kind() {
        HirKind::Class(_) => true,
        HirKind::Literal(literal) => letters(literal).chars().nth(1).is_none(),
        _ => false,
    };
    parts.chunk_by(move |one, two| is_letter(one) && is_letter(two))
}

/// Returns the class of alternatives that are one character each.
pub(super) fn class_of(run: &[Hir]) -> Class {
    let pairs = run.iter().flat_map(|part| match part.kind() {
        HirKind::Class(class) => ranges(class),
        HirKind::Literal(literal) => {
            let text = letters(literal);
            text.chars().map(|letter| (letter, letter)).collect()
        }
        _ => Vec::new(),
    });
    let ranges = pairs.map(|(low, high)| ClassUnicodeRange::new(low, high));
    Class::Unicode(ClassUnicode::new(ranges))
}

/// Returns the characters of a class.
pub(super) fn ranges(class: &Class) -> Vec<(char, char)> {
    match class {
        Class::Unicode(class) => class
            .iter()
            .map(|range| (range.start(), range.end()))
            .collect(),
        Class::Bytes(class) => {
            let pair = |range: &regex_syntax::hir::ClassBytesRange| {
                (char::from(range.start()), char::from(range.end()))
            };
            class.iter().map(pair).collect()
        }
    }
}

/// Returns how many steps a part of so many steps has when it is repeated.
fn repeated(part: usize, min: u32, max: Option<u32>) -> usize {
    // As often as it may be repeated, and where it may end.
    let (times, ends) = match max {
        Some(max) => (max, max.saturating_sub(min)),
        None => (min.max(1), 1 + u32::from(min == 0)),
    };
    part.saturating_mul(times as usize)
        .saturating_add(ends as usize)
}

/// Like [`steps`] for a pattern whose classes have not been made.
pub(super) fn written_steps(pattern: &Ast) -> usize {
    let sum = |parts: &[Ast]| {
        let steps = parts.iter().map(written_steps);
        steps.fold(0, usize::saturating_add)
    };
    match pattern {
        Ast::Empty(_) | Ast::Flags(_) => 0,
        Ast::Literal(_)
        | Ast::Dot(_)
        | Ast::Assertion(_)
        | Ast::ClassUnicode(_)
        | Ast::ClassPerl(_)
        | Ast::ClassBracketed(_) => 1,
        Ast::Repetition(repetition) => {
            let (min, max) = match &repetition.op.kind {
                RepetitionKind::ZeroOrOne => (0, Some(1)),
                RepetitionKind::ZeroOrMore => (0, None),
                RepetitionKind::OneOrMore => (1, None),
                RepetitionKind::Range(RepetitionRange::Exactly(times)) => (*times, Some(*times)),
                RepetitionKind::Range(RepetitionRange::AtLeast(min)) => (*min, None),
                RepetitionKind::Range(RepetitionRange::Bounded(min, max)) => (*min, Some(*max)),
            };
            repeated(written_steps(&repetition.ast), min, max)
        }
        Ast::Group(group) => written_steps(&group.ast),
        Ast::Concat(parts) => sum(&parts.asts),
        Ast::Alternation(parts) => {
            let is_letter = |part: &Ast| {
                matches!(
                    part,
                    Ast::Literal(_)
                        | Ast::Dot(_)
                        | Ast::ClassUnicode(_)
                        | Ast::ClassPerl(_)
                        | Ast::ClassBracketed(_)
                )
            };
            let runs = parts
                .asts
                .chunk_by(|one, two| is_letter(one) && is_letter(two));
            let count = runs.map(|run| match run {
                [only] => written_steps(only),
                _ => 1,
            });
            let add = |sum: usize, own: usize| sum.saturating_add(own).saturating_add(2);
            count.fold(0, add).saturating_sub(2)
        }
    }
}
