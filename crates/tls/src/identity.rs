//! A side's certificate and key, and the CA that signs the other side's.

use crate::error::Error;
use crate::stream::{Acceptor, Connector};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;

/// A side's certificate and key, and the CA that signs the other side's.
pub struct Identity {
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// From PEM files: the CA's certificate, the own chain, the own key.
    pub fn load(ca: &Path, chain: &Path, key: &Path) -> Result<Identity, Error> {
        let bad = |what, path: &Path, why: String| Error::File { what, path: path.to_owned(), why };
        let certificates = |what, path: &Path| -> Result<Vec<_>, Error> {
            let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            let all = all.map_err(|e| bad(what, path, e.to_string()))?;
            if all.is_empty() {
                return Err(bad(what, path, "the file has no PEM certificate".to_owned()));
            }
            Ok(all)
        };
        let mut roots = RootCertStore::empty();
        for root in certificates("CA certificate", ca)? {
            roots.add(root).map_err(|e| bad("CA certificate", ca, e.to_string()))?;
        }
        let chain = certificates("certificate", chain)?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(|e| bad("private key", key, e.to_string()))?;
        Ok(Identity { roots: Arc::new(roots), chain, key })
    }

    /// Accepts connections of clients that this CA has signed. Both sides name the protocol and its version;
    /// who speaks another one is refused.
    pub fn acceptor(&self, protocol: &[u8]) -> Result<Acceptor, Error> {
        let verifier = WebPkiClientVerifier::builder_with_provider(self.roots.clone(), provider());
        let verifier = verifier.build().map_err(|e| Error::Tls(e.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| Error::tls(&e))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(|e| Error::tls(&e))?;
        config.alpn_protocols = vec![protocol.to_vec()];
        // A connection lives long; who comes again proves itself again.
        config.send_tls13_tickets = 0;
        Ok(Acceptor(Arc::new(config)))
    }

    /// Makes connections to sides that this CA has signed.
    pub fn connector(&self, protocol: &[u8]) -> Result<Connector, Error> {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| Error::tls(&e))?
            .with_root_certificates(self.roots.clone())
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())
            .map_err(|e| Error::tls(&e))?;
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Connector(Arc::new(config)))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
