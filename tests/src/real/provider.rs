//! An identity provider: keys of every kind, tokens signed with them, and an HTTP page with the public keys.
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Claim `iss` of the tokens.
pub const ISSUER: &str = "https://id.example.com/";
/// Claim `aud` of the tokens.
pub const AUDIENCE: &str = "turnway";

/// A key that signs tokens.
#[derive(Debug)]
pub struct Signer {
    kid: String,
    secret: Secret,
}

#[derive(Debug)]
enum Secret {
    Rsa(Box<RsaKeyPair>),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

/// An HTTP page with public keys. Stops when dropped.
#[derive(Debug)]
pub struct Provider {
    address: SocketAddr,
    page: Arc<Page>,
    task: JoinHandle<()>,
}

/// Answer of the page, and number of requests.
#[derive(Debug, Default)]
struct Page {
    answer: Mutex<Vec<u8>>,
    asked: AtomicUsize,
}

/// Encodes as unpadded URL-safe base64, as tokens do.
pub fn base64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns the seconds since 1970 plus an offset.
pub fn seconds(from_now: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(now.as_secs()).expect("before the end of time") + from_now
}

/// Returns the claims of a valid token of this user, for one hour.
pub fn claims(user: &str) -> Value {
    json!({"iss": ISSUER, "aud": AUDIENCE, "sub": user, "exp": seconds(3600), "nbf": seconds(-1)})
}

// === impl Signer ===

impl Signer {
    /// Creates an RSA key of 2,048 bits.
    pub fn rsa(kid: &str) -> Self {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).expect("a key");
        Self { kid: kid.to_owned(), secret: Secret::Rsa(Box::new(pair)) }
    }

    /// Creates a P-256 key.
    pub fn p256(kid: &str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
        Self { kid: kid.to_owned(), secret: Secret::P256(pair) }
    }

    /// Creates an Ed25519 key.
    pub fn ed25519(kid: &str) -> Self {
        Self { kid: kid.to_owned(), secret: Secret::Ed25519(Ed25519KeyPair::generate().expect("a key")) }
    }

    /// Returns the public key as a JWK.
    pub fn jwk(&self) -> Value {
        let mut jwk = match &self.secret {
            Secret::Rsa(pair) => {
                // PKCS #1: a sequence, the modulus with a leading zero byte, the exponent of three bytes.
                let der = pair.public_key().as_ref();
                assert_eq!(der.len(), 270, "2,048 bits");
                json!({"kty": "RSA", "n": base64(&der[9..265]), "e": base64(&der[267..])})
            }
            Secret::P256(pair) => {
                let point = pair.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "x": base64(&point[1..33]), "y": base64(&point[33..])})
            }
            Secret::Ed25519(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "x": base64(pair.public_key().as_ref())})
            }
        };
        jwk["kid"] = self.kid.as_str().into();
        jwk["alg"] = self.alg().into();
        jwk["use"] = "sig".into();
        jwk
    }

    /// Returns the name of the signature algorithm.
    pub fn alg(&self) -> &'static str {
        match self.secret {
            Secret::Rsa(_) => "RS256",
            Secret::P256(_) => "ES256",
            Secret::Ed25519(_) => "EdDSA",
        }
    }

    /// Returns the JWT header of the key's tokens.
    pub fn head(&self) -> Value {
        json!({"alg": self.alg(), "kid": self.kid, "typ": "JWT"})
    }

    /// Creates a token with these claims.
    pub fn token(&self, claims: &Value) -> String {
        self.with_head(&self.head(), claims)
    }

    /// Creates a token with another header.
    pub fn with_head(&self, head: &Value, claims: &Value) -> String {
        self.sign(&format!("{}.{}", base64(head.to_string()), base64(claims.to_string())))
    }

    /// Returns the message with its signature appended.
    pub fn sign(&self, message: &str) -> String {
        let random = SystemRandom::new();
        let signature = match &self.secret {
            Secret::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message.as_bytes(), &mut signature).expect("signed");
                signature
            }
            Secret::P256(pair) => pair.sign(&random, message.as_bytes()).expect("signed").as_ref().to_vec(),
            Secret::Ed25519(pair) => pair.sign(message.as_bytes()).as_ref().to_vec(),
        };
        format!("{message}.{}", base64(signature))
    }
}

// === impl Provider ===

impl Provider {
    /// Starts a page with the public keys of these signers.
    pub async fn start(signers: &[&Signer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let page = Arc::<Page>::default();
        let shown = Arc::clone(&page);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, Arc::clone(&shown)));
            }
        });
        let provider = Self { address, page, task };
        provider.show(signers);
        provider
    }

    /// Replaces the keys on the page.
    pub fn show(&self, signers: &[&Signer]) {
        let keys: Vec<_> = signers.iter().map(|signer| signer.jwk()).collect();
        self.show_text("200 OK", "", &json!({"keys": keys}).to_string());
    }

    /// Sets the raw answer: a status, further headers, a body.
    pub fn show_text(&self, status: &str, headers: &str, body: &str) {
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}");
        *self.page.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer.into_bytes();
    }

    /// Returns the number of requests.
    pub fn asked(&self) -> usize {
        self.page.asked.load(Ordering::SeqCst)
    }

    /// Returns the URL of the keys.
    pub fn url(&self) -> String {
        format!("http://{}/jwks.json", self.address)
    }

    /// Returns the flags of a node that accepts only this provider's tokens.
    pub fn flags(&self) -> Vec<String> {
        flags("jwt", &self.url())
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns the flags of a node that accepts tokens with keys from this URL.
pub fn flags(mode: &str, jwks: &str) -> Vec<String> {
    let pairs = [("--auth", mode), ("--auth-jwks", jwks), ("--auth-issuer", ISSUER), ("--auth-audience", AUDIENCE)];
    pairs.iter().flat_map(|(flag, value)| [(*flag).to_owned(), (*value).to_owned()]).collect()
}

async fn answer(mut stream: TcpStream, page: Arc<Page>) {
    let (read, mut write) = stream.split();
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await
        && !line.is_empty()
    {}
    page.asked.fetch_add(1, Ordering::SeqCst);
    let answer = page.answer.lock().unwrap_or_else(PoisonError::into_inner).clone();
    // The client may have closed the connection.
    let _ = write.write_all(&answer).await;
}
