//! The syntax check of expressions: their grammar and the names they use.
//!
//! Knows neither functions nor types beyond literals. So an expression that passes may still not
//! compile; one that fails never compiles. The texts are those of upstream's compiler.

mod check;
mod lex;
mod parse;
#[cfg(test)]
mod tests;

/// The names that an expression may use.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// The variables, each with all its fields if they are known.
    pub variables: &'a [(&'a str, Option<&'a [&'a str]>)],
}

/// A complaint about a position in the expression.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Complaint {
    /// The position, in characters from the beginning.
    at: usize,
    text: String,
}

/// Returns the type of an expression that is only a literal; `None` for all others.
///
/// # Errors
/// Returns the compiler's complaints, one after another, each with its line.
pub fn check(expression: &str, scope: &Scope<'_>) -> Result<Option<&'static str>, String> {
    let (tokens, mut complaints) = lex::tokens(expression);
    let (node, found) = parse::parse(&tokens);
    complaints.extend(found);
    if complaints.is_empty() {
        complaints = check::references(&node, scope);
    }
    if complaints.is_empty() {
        return Ok(node.literal());
    }
    complaints.sort_by_key(|complaint| complaint.at);
    let shown: Vec<String> = complaints
        .iter()
        .map(|complaint| show(expression, complaint))
        .collect();
    Err(shown.join("\n"))
}

/// Returns a complaint with its position and its line.
fn show(expression: &str, complaint: &Complaint) -> String {
    let before: Vec<char> = expression.chars().take(complaint.at).collect();
    let line = before.iter().filter(|letter| **letter == '\n').count();
    let column = before
        .iter()
        .rev()
        .take_while(|letter| **letter != '\n')
        .count();
    let text = expression.split('\n').nth(line).unwrap_or("");
    if expression.is_empty() {
        return format!("ERROR: <input>:1:0: {}", complaint.text);
    }
    let wide = |letter: char| letter.len_utf8() > 1;
    let dots: String = text
        .chars()
        .take(column)
        .map(|letter| if wide(letter) { '．' } else { '.' })
        .collect();
    let mark = if text.chars().nth(column).is_some_and(wide) {
        '＾'
    } else {
        '^'
    };
    let text = text.replace('\t', " ");
    format!(
        "ERROR: <input>:{}:{}: {}\n | {text}\n | {dots}{mark}",
        line + 1,
        column + 1,
        complaint.text
    )
}
