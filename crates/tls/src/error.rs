//! What can go wrong between two sides that prove who they are, and what helps.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why there is no connection, or none any longer.
#[derive(Debug)]
pub enum Error {
    /// A file with certificates or a key.
    File {
        /// What it was to hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The two sides do not accept one another.
    Tls(String),
    /// The other side's certificate has no name.
    Nameless,
    /// The connection broke, or the other side was silent for too long.
    Lost(io::Error),
}

impl Error {
    /// Tells TLS's complaints from a lost connection.
    pub fn lost(source: io::Error) -> Error {
        let inner = source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match inner {
            Some(error) => Error::tls(error),
            None => Error::Lost(source),
        }
    }

    pub(crate) fn tls(error: &rustls::Error) -> Error {
        use rustls::{AlertDescription as Alert, CertificateError, Error as Tls};
        Error::Tls(match error {
            Tls::AlertReceived(Alert::NoApplicationProtocol) => {
                "the other side speaks another version of this protocol; use the same version of adverb"
                    .to_owned()
            }
            Tls::AlertReceived(Alert::CertificateRequired) => {
                "the other side asks for a certificate; give one that its CA has signed".to_owned()
            }
            Tls::AlertReceived(Alert::CertificateExpired) => {
                "the other side refused this side's certificate: expired; renew it".to_owned()
            }
            Tls::AlertReceived(
                alert @ (Alert::UnknownCA
                | Alert::BadCertificate
                | Alert::DecryptError
                | Alert::CertificateUnknown
                | Alert::AccessDenied),
            ) => format!(
                "the other side refused this side's certificate ({alert:?}); give one that its CA has signed"
            ),
            Tls::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
                "the other side's certificate was not signed by the CA given; check who it is, or name its CA"
                    .to_owned()
            }
            Tls::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
                "the other side's certificate has expired".to_owned()
            }
            Tls::InvalidCertificate(
                error @ (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }),
            ) => format!(
                "the owner's certificate is for another name: {error}; name the owner as its certificate does"
            ),
            Tls::NoCertificatesPresented => "the client showed no certificate".to_owned(),
            other => other.to_string(),
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::File { what, path, why } => write!(f, "{}: no {what} there: {why}", path.display()),
            Error::Tls(text) => write!(f, "TLS: {text}"),
            Error::Nameless => f.write_str("the other side sent a certificate without a name"),
            Error::Lost(source) => write!(f, "the connection to the other side is lost: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Lost(source) => Some(source),
            Error::File { .. } | Error::Tls(_) | Error::Nameless => None,
        }
    }
}
