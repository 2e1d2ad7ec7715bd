//! A CA and certificates for trials and tests. A site that has a CA uses its own.

use crate::error::Error;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rcgen::{KeyUsagePurpose, SanType};
use std::fs::OpenOptions;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Who a certificate is for: its name, which policies know, and the addresses at which it may be an owner.
#[derive(Clone, Debug)]
pub struct Holder {
    /// A DNS name.
    pub name: String,
    /// Addresses.
    pub addresses: Vec<IpAddr>,
}

fn made(error: rcgen::Error) -> Error {
    Error::Tls(format!("making a certificate: {error}"))
}

/// Writes `ca.pem`, and `NAME.pem` and `NAME.key` for each holder, into a folder, whose files of these names
/// must not be there yet. The CA's key is nowhere kept: nobody can sign further certificates with it.
pub fn write_trial_certificates(folder: &Path, holders: &[Holder]) -> Result<(), Error> {
    let ca_key = KeyPair::generate().map_err(made)?;
    let mut ca = CertificateParams::default();
    ca.distinguished_name.push(DnType::CommonName, "adverb trial CA");
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let certificate = ca.self_signed(&ca_key).map_err(made)?;
    let issuer = Issuer::new(ca, ca_key);
    std::fs::create_dir_all(folder).map_err(|e| file("room for certificates", folder, &e))?;
    write(folder, "ca.pem", certificate.pem().as_bytes(), 0o644)?;
    for holder in holders {
        let key = KeyPair::generate().map_err(made)?;
        let mut params = CertificateParams::new(vec![holder.name.clone()]).map_err(made)?;
        params.distinguished_name.push(DnType::CommonName, holder.name.as_str());
        params.subject_alt_names.extend(holder.addresses.iter().map(|address| SanType::IpAddress(*address)));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &issuer).map_err(made)?;
        write(folder, &format!("{}.pem", holder.name), certificate.pem().as_bytes(), 0o644)?;
        write(folder, &format!("{}.key", holder.name), key.serialize_pem().as_bytes(), 0o600)?;
    }
    Ok(())
}

fn file(what: &'static str, path: &Path, error: &std::io::Error) -> Error {
    Error::File { what, path: path.to_owned(), why: error.to_string() }
}

fn write(folder: &Path, name: &str, bytes: &[u8], mode: u32) -> Result<(), Error> {
    let path = folder.join(name);
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path);
    opened.and_then(|mut file| file.write_all(bytes)).map_err(|e| file("room for a new file", &path, &e))
}
