//! The extended functions of texts.

pub(crate) mod formatting;

use crate::library::Context;
use crate::library::{Library, lists};
use crate::limits::check_text;
use crate::value::{Fault, Outcome, Value};

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        string_char_at_int: charAt:(string, int) -> string
        string_index_of_string: indexOf:(string, string) -> int
        string_index_of_string_int: indexOf:(string, string, int) -> int
        string_last_index_of_string: lastIndexOf:(string, string) -> int
        string_last_index_of_string_int: lastIndexOf:(string, string, int) -> int
        string_lower_ascii: lowerAscii:(string) -> string
        string_replace_string_string: replace:(string, string, string) -> string
        string_replace_string_string_int: replace:(string, string, string, int) -> string
        string_split_string: split:(string, string) -> list(string)
        string_split_string_int: split:(string, string, int) -> list(string)
        string_substring_int: substring:(string, int) -> string
        string_substring_int_int: substring:(string, int, int) -> string
        string_trim: trim:(string) -> string
        string_upper_ascii: upperAscii:(string) -> string
        string_format: format:(string, list(dyn)) -> string
        strings_quote: strings.quote(string) -> string
        list_join: join:(list(string)) -> string
        list_join_string: join:(list(string), string) -> string",
    runs: &[
        ("charAt", char_at),
        ("indexOf", |context, args| index_of(context, args, false)),
        ("lastIndexOf", |context, args| index_of(context, args, true)),
        ("lowerAscii", |_, args| {
            change(args, str::to_ascii_lowercase)
        }),
        ("upperAscii", |_, args| {
            change(args, str::to_ascii_uppercase)
        }),
        ("trim", |_, args| {
            change(args, |text| text.trim().to_owned())
        }),
        ("replace", replace),
        ("split", split),
        ("substring", substring),
        ("format", formatting::format),
        ("strings.quote", |_, args| change(args, quote)),
        ("join", join),
    ],
    types: &[],
};

fn change<'a>(args: &[Value<'a>], by: fn(&str) -> String) -> Outcome<'a> {
    match args {
        [Value::String(text)] => Ok(Value::text(by(text))),
        _ => Err(Fault::no_overload()),
    }
}

fn out_of_range(at: i64) -> Fault {
    Fault::error(format!("index out of range: {at}"))
}

fn char_at<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let [Value::String(text), Value::Int(at)] = args else {
        return Err(Fault::no_overload());
    };
    let place = usize::try_from(*at).map_err(|_| out_of_range(*at))?;
    match text.chars().nth(place) {
        Some(letter) => Ok(Value::text(letter)),
        None if text.chars().count() == place => Ok(Value::text("")),
        None => Err(out_of_range(*at)),
    }
}

/// Finds a text in a text, or a value in a list.
fn index_of<'a>(context: Context<'_>, args: &[Value<'a>], from_end: bool) -> Outcome<'a> {
    let (text, part, offset) = match args {
        [Value::List(list), value] => return Ok(lists::place(context, list, value, from_end)),
        [Value::String(text), Value::String(part)] => (text, part, None),
        [Value::String(text), Value::String(part), Value::Int(at)] => (text, part, Some(*at)),
        _ => return Err(Fault::no_overload()),
    };
    let number = |at: usize| Ok(Value::Int(i64::try_from(at).unwrap_or(i64::MAX)));
    let start = match offset {
        Some(at) => usize::try_from(at).map_err(|_| out_of_range(at))?,
        None if from_end => usize::MAX,
        None => 0,
    };
    // The place of the offset in bytes; none if it lies at the end or behind it.
    let place = text.char_indices().nth(start).map(|(place, _)| place);
    if part.is_empty() {
        return number(start.min(text.chars().count()));
    }
    let found = match place {
        None if offset.is_some() => None,
        Some(place) if from_end => {
            // What begins at the offset at the latest ends there at the latest.
            let mut end = text.len().min(place + part.len());
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text[..end].rfind(&**part)
        }
        None => text.rfind(&**part),
        Some(place) => text[place..].find(&**part).map(|at| at + place),
    };
    found.map_or(Ok(Value::Int(-1)), |at| number(text[..at].chars().count()))
}

fn replace<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let (text, old, new, most) = match args {
        [Value::String(text), Value::String(old), Value::String(new)] => (text, old, new, -1),
        [
            Value::String(text),
            Value::String(old),
            Value::String(new),
            Value::Int(most),
        ] => (text, old, new, *most),
        _ => return Err(Fault::no_overload()),
    };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let count = text.matches(&**old).take(most).count();
    check_text(text.len().saturating_add(count.saturating_mul(new.len())))?;
    Ok(Value::text(text.replacen(&**old, new, most)))
}

fn split<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let (text, separator, count) = match args {
        [Value::String(text), Value::String(separator)] => (text, separator, -1),
        [
            Value::String(text),
            Value::String(separator),
            Value::Int(count),
        ] => (text, separator, *count),
        _ => return Err(Fault::no_overload()),
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let mut parts = Vec::new();
    let mut add = |part: &str| {
        context.budget.elements(1)?;
        context.budget.make(part.len())?;
        parts.push(Value::text(part));
        Ok::<_, Fault>(())
    };
    if count == 0 {
    } else if separator.is_empty() {
        letters(text, count).try_for_each(&mut add)?;
    } else {
        text.splitn(count, &**separator).try_for_each(&mut add)?;
    }
    Ok(Value::list(parts))
}

/// Splits between all letters, into at most `count` parts.
fn letters(text: &str, count: usize) -> impl Iterator<Item = &str> {
    let places = text.char_indices().enumerate();
    places.map_while(move |(number, (at, letter))| match number + 1 {
        here if here < count => Some(&text[at..at + letter.len_utf8()]),
        here if here == count => Some(&text[at..]),
        _ => None,
    })
}

fn substring<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let (text, start, end) = match args {
        [Value::String(text), Value::Int(start)] => (text, *start, None),
        [Value::String(text), Value::Int(start), Value::Int(end)] => (text, *start, Some(*end)),
        _ => return Err(Fault::no_overload()),
    };
    if let Some(end) = end.filter(|end| start > *end) {
        return Err(Fault::error(format!(
            "invalid substring range. start: {start}, end: {end}"
        )));
    }
    let place = |at: i64| {
        let mut places = text.char_indices().map(|(place, _)| place);
        let before_end = usize::try_from(at).ok().map(|at| places.nth(at));
        match before_end {
            Some(Some(place)) => Ok(place),
            Some(None) if text.chars().count() as i128 == i128::from(at) => Ok(text.len()),
            _ => Err(out_of_range(at)),
        }
    };
    let from = place(start)?;
    let to = end.map_or(Ok(text.len()), place)?;
    Ok(Value::text(&text[from..to]))
}

fn join<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let (list, separator) = match args {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::String(separator)] => (list, &**separator),
        _ => return Err(Fault::no_overload()),
    };
    context.walk(list)?;
    let mut made = String::new();
    for (number, element) in list.iter().enumerate() {
        let Value::String(text) = element else {
            return Err(Fault::error(format!(
                "join: invalid input: {}",
                crate::format::plain(&element)
            )));
        };
        check_text(made.len().saturating_add(separator.len() + text.len()))?;
        if number > 0 {
            made.push_str(separator);
        }
        made.push_str(&text);
    }
    Ok(Value::text(made))
}

fn quote(text: &str) -> String {
    let mut made = String::from("\"");
    for letter in text.chars() {
        match letter {
            '\u{7}' => made.push_str("\\a"),
            '\u{8}' => made.push_str("\\b"),
            '\u{c}' => made.push_str("\\f"),
            '\n' => made.push_str("\\n"),
            '\r' => made.push_str("\\r"),
            '\t' => made.push_str("\\t"),
            '\u{b}' => made.push_str("\\v"),
            '\\' => made.push_str("\\\\"),
            '"' => made.push_str("\\\""),
            other => made.push(other),
        }
    }
    made.push('"');
    made
}
