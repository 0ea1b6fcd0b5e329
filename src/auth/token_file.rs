//! The static token file of kube-apiserver: lines of token, user name, uid and groups, separated by
//! commas.

use polyplane_apimachinery::Str;

use crate::token::{StaticToken, StaticTokens};
use crate::user::UserInfo;

/// Lines that a file may have. Each request with a token of the length of one compares all of them.
const LINES_MAX: usize = 10_000;
/// Columns that a line has at least: token, user name, uid.
const COLUMNS_MIN: usize = 3;

/// The reason why a token file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenFileError {
    /// A line has fewer columns than it needs.
    #[error("must have at least 3 columns (token, user name, user uid), found {0}")]
    Columns(usize),
    /// A quote is not closed, or stands inside a column.
    #[error("record on line {0}: parse error: bare or unclosed \" in a column")]
    Quote(usize),
    /// There are more lines than a server compares.
    #[error("has more than {LINES_MAX} lines")]
    TooLong,
}

/// Reads a token file. As in upstream a line without a token is left out, and of several lines with
/// one token the last one counts.
///
/// # Errors
/// Returns an error if a line cannot be read.
pub fn parse(text: &str) -> Result<StaticTokens, TokenFileError> {
    let mut users: Vec<(String, UserInfo)> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if at >= LINES_MAX {
            return Err(TokenFileError::TooLong);
        }
        if line.is_empty() {
            continue;
        }
        let columns = columns(line).ok_or(TokenFileError::Quote(at + 1))?;
        if columns.len() < COLUMNS_MIN {
            return Err(TokenFileError::Columns(columns.len()));
        }
        let token = columns[0].clone();
        if token.is_empty() {
            continue;
        }
        let groups: Vec<&str> = match columns.get(3).map(String::as_str) {
            None | Some("") => Vec::new(),
            Some(groups) => groups.split(',').collect(),
        };
        let user = UserInfo {
            uid: Str::from(columns[2].as_str()),
            ..UserInfo::new(columns[1].as_str(), &groups)
        };
        users.retain(|(known, _)| *known != token);
        users.push((token, user));
    }
    let tokens = users.into_iter();
    let tokens = tokens.map(|(token, user)| StaticToken::new(&token, user));
    Ok(StaticTokens::new(tokens.collect()))
}

/// Splits a line at commas outside of quotes. A doubled quote stands for one.
fn columns(line: &str) -> Option<Vec<String>> {
    let mut columns = Vec::new();
    let mut rest = line;
    loop {
        let (column, behind) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_column(quoted)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                (rest[..end].to_owned(), &rest[end..])
            }
        };
        if !rest.starts_with('"') && column.contains('"') {
            return None;
        }
        columns.push(column);
        match behind.strip_prefix(',') {
            Some(next) => rest = next,
            None if behind.is_empty() => return Some(columns),
            None => return None,
        }
    }
}

fn quoted_column(quoted: &str) -> Option<(String, &str)> {
    let mut column = String::new();
    let mut rest = quoted;
    loop {
        let end = rest.find('"')?;
        column.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(next) => {
                column.push('"');
                rest = next;
            }
            None => return Some((column, rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authenticator::{Authentication, Authenticator as _, Credentials};
    use std::time::SystemTime;

    async fn user(tokens: &StaticTokens, bearer: &str) -> Option<(String, String, Vec<String>)> {
        let credentials = Credentials {
            bearer: Some(bearer),
            chain: None,
            path: "/",
            now: SystemTime::UNIX_EPOCH,
            source: 0,
        };
        match tokens.authenticate(&credentials).await {
            Authentication::User(user) => {
                let groups = user.groups.iter().map(|group| group.to_string());
                Some((
                    user.name.to_string(),
                    user.uid.to_string(),
                    groups.collect(),
                ))
            }
            _ => None,
        }
    }

    #[tokio::test]
    async fn lines_name_users_as_upstream_reads_them() {
        let text =
            "t1,one,u1\nt2,two,u2,\"a,b\"\r\n\nt3,\"th\"\"ree\",u3,c,d\n,nobody,u4\nt1,last,u5\n";
        let tokens = parse(text).expect("a token file");
        let all = "system:authenticated";
        for (token, name, uid, groups) in [
            ("t1", "last", "u5", vec![all]),
            ("t2", "two", "u2", vec!["a", "b", all]),
            ("t3", "th\"ree", "u3", vec!["c", all]),
        ] {
            let found = user(&tokens, token).await.expect(token);
            let groups: Vec<String> = groups.into_iter().map(str::to_owned).collect();
            assert_eq!(found, (name.to_owned(), uid.to_owned(), groups));
        }
        assert_eq!(user(&tokens, "").await, None);
        assert_eq!(user(&tokens, "t4").await, None);
    }

    #[test]
    fn lines_that_cannot_be_read_are_refused() {
        assert_eq!(parse("t,one").err(), Some(TokenFileError::Columns(2)));
        for line in ["\"t,one,u", "t\"x,one,u", "\"t\"x,one,u"] {
            assert_eq!(parse(line).err(), Some(TokenFileError::Quote(1)), "{line}");
        }
        let long = "t,one,u\n".repeat(LINES_MAX + 1);
        assert_eq!(parse(&long).err(), Some(TokenFileError::TooLong));
    }
}
