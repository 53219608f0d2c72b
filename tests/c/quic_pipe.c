/* A client's end of QUIC by ngtcp2 and GnuTLS, as a pipe: what it is told on stdin it says on the control stream, and what
 * the node says it writes to stdout. docs/protocol.md §1.8 is all it knows; what messages mean is its caller's business.
 *
 *     quic_pipe PORT CA
 *
 * A line of stdin is a message. A line of stdout is a stream's number and a message of it, `N end` where a stream has
 * ended, or `closed CODE`. The end of stdin ends the connection. */
#include <arpa/inet.h>
#include <errno.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <ngtcp2/ngtcp2.h>
#include <ngtcp2/ngtcp2_crypto.h>
#include <ngtcp2/ngtcp2_crypto_gnutls.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define STREAMS 256
#define OUT_BYTES (1 << 20)
#define PRIORITY                                                                                                         \
  "NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+AES-128-GCM:+AES-256-GCM:+CHACHA20-POLY1305:-GROUP-ALL:+GROUP-X25519:"       \
  "+GROUP-SECP256R1:%DISABLE_TLS13_COMPAT_MODE"

static ngtcp2_conn *conn;
static int fd;
/* What was said so far: it must stay where it is until the node has it. */
static uint8_t out[OUT_BYTES];
static size_t out_length, out_sent;
static int64_t control = -1;
static struct {
  int64_t id;
  uint8_t *data;
  size_t length;
} streams[STREAMS];
static size_t stream_count;

static void fail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

static ngtcp2_tstamp now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (ngtcp2_tstamp)time.tv_sec * NGTCP2_SECONDS + (ngtcp2_tstamp)time.tv_nsec;
}

static uint32_t length_at(const uint8_t *at) {
  return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static int received(ngtcp2_conn *of, uint32_t flags, int64_t id, uint64_t offset, const uint8_t *data, size_t length,
                    void *user, void *stream_user) {
  (void)offset, (void)user, (void)stream_user;
  size_t n = 0, done = 0;
  while (n < stream_count && streams[n].id != id) n++;
  if (n == STREAMS) fail("streams", "too many");
  if (n == stream_count) streams[stream_count++].id = id;
  streams[n].data = realloc(streams[n].data, streams[n].length + length + 1);
  memcpy(streams[n].data + streams[n].length, data, length);
  streams[n].length += length;
  while (streams[n].length - done >= 4) {
    uint32_t whole = length_at(streams[n].data + done);
    if (streams[n].length - done - 4 < whole) break;
    printf("%lld %.*s\n", (long long)id, (int)whole, (const char *)streams[n].data + done + 4);
    done += 4 + whole;
  }
  streams[n].length -= done;
  memmove(streams[n].data, streams[n].data + done, streams[n].length);
  if (flags & NGTCP2_STREAM_DATA_FLAG_FIN) {
    if (streams[n].length) fail("a stream ends", "within a message");
    printf("%lld end\n", (long long)id);
  }
  fflush(stdout);
  ngtcp2_conn_extend_max_stream_offset(of, id, length);
  ngtcp2_conn_extend_max_offset(of, length);
  return 0;
}

/* Another stream may come for each that has ended. */
static int stream_closed(ngtcp2_conn *of, uint32_t flags, int64_t id, uint64_t code, void *user, void *stream_user) {
  (void)flags, (void)code, (void)user, (void)stream_user;
  if (id % 4 == 3) ngtcp2_conn_extend_max_streams_uni(of, 1);
  return 0;
}

static void chance(uint8_t *into, size_t length, const ngtcp2_rand_ctx *context) {
  (void)context;
  gnutls_rnd(GNUTLS_RND_RANDOM, into, length);
}

static int new_id(ngtcp2_conn *of, ngtcp2_cid *id, uint8_t *token, size_t length, void *user) {
  (void)of, (void)user;
  gnutls_rnd(GNUTLS_RND_RANDOM, id->data, length);
  id->datalen = length;
  gnutls_rnd(GNUTLS_RND_RANDOM, token, NGTCP2_STATELESS_RESET_TOKENLEN);
  return 0;
}

static ngtcp2_conn *conn_of(ngtcp2_crypto_conn_ref *ref) {
  (void)ref;
  return conn;
}

static void write_packets(void) {
  uint8_t packet[1452];
  ngtcp2_path_storage path;
  ngtcp2_pkt_info info;
  ngtcp2_path_storage_zero(&path);
  int is_blocked = 0;
  for (;;) {
    if (control < 0 && ngtcp2_conn_open_bidi_stream(conn, &control, NULL) != 0) control = -1;
    ngtcp2_vec said = {out + out_sent, out_length - out_sent};
    ngtcp2_ssize taken = -1;
    int64_t id = control >= 0 && said.len > 0 && !is_blocked ? control : -1;
    ngtcp2_ssize length = ngtcp2_conn_writev_stream(conn, &path.path, &info, packet, sizeof packet, &taken,
                                                    NGTCP2_WRITE_STREAM_FLAG_NONE, id, &said, id < 0 ? 0 : 1, now());
    if (length == NGTCP2_ERR_STREAM_DATA_BLOCKED) {
      is_blocked = 1;
      continue;
    }
    if (length < 0) fail("writing", ngtcp2_strerror((int)length));
    if (taken > 0) out_sent += (size_t)taken;
    if (length == 0) break;
    send(fd, packet, (size_t)length, 0);
  }
  ngtcp2_conn_update_pkt_tx_time(conn, now());
}

static void read_packets(const ngtcp2_path *path) {
  uint8_t packet[65536];
  ssize_t length;
  while ((length = recv(fd, packet, sizeof packet, MSG_DONTWAIT)) > 0) {
    ngtcp2_pkt_info info = {0};
    int verdict = ngtcp2_conn_read_pkt(conn, path, &info, packet, (size_t)length, now());
    if (verdict == NGTCP2_ERR_DRAINING) {
      ngtcp2_connection_close_error why;
      ngtcp2_conn_get_connection_close_error(conn, &why);
      printf("closed %llu\n", (unsigned long long)why.error_code);
      exit(0);
    }
    if (verdict != 0) fail("reading", ngtcp2_strerror(verdict));
  }
}

/* False at the end. */
static int read_orders(void) {
  static uint8_t line[1 << 17];
  static size_t have;
  ssize_t length = read(0, line + have, sizeof line - have);
  if (length <= 0) return 0;
  have += (size_t)length;
  uint8_t *end;
  while ((end = memchr(line, '\n', have))) {
    size_t whole = (size_t)(end - line);
    if (out_length + 4 + whole > OUT_BYTES) fail("stdin", "too much");
    uint8_t head[4] = {(uint8_t)(whole >> 24), (uint8_t)(whole >> 16), (uint8_t)(whole >> 8), (uint8_t)whole};
    memcpy(out + out_length, head, 4);
    memcpy(out + out_length + 4, line, whole);
    out_length += 4 + whole;
    have -= whole + 1;
    memmove(line, end + 1, have);
  }
  return 1;
}

static gnutls_session_t session_of(const char *ca, ngtcp2_crypto_conn_ref *ref) {
  gnutls_certificate_credentials_t trust;
  gnutls_session_t session;
  gnutls_datum_t alpn = {(unsigned char *)"turnway/1", 9};
  if (gnutls_certificate_allocate_credentials(&trust) != 0) fail("gnutls", "no credentials");
  if (gnutls_certificate_set_x509_trust_file(trust, ca, GNUTLS_X509_FMT_PEM) < 1) fail(ca, "no certificate");
  gnutls_init(&session, GNUTLS_CLIENT | GNUTLS_NO_END_OF_EARLY_DATA);
  if (ngtcp2_crypto_gnutls_configure_client_session(session) != 0) fail("gnutls", "no session");
  if (gnutls_priority_set_direct(session, PRIORITY, NULL) != 0) fail("gnutls", "no priorities");
  gnutls_session_set_ptr(session, ref);
  gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, trust);
  gnutls_alpn_set_protocols(session, &alpn, 1, GNUTLS_ALPN_MANDATORY);
  gnutls_server_name_set(session, GNUTLS_NAME_DNS, "localhost", 9);
  gnutls_session_set_verify_cert(session, "localhost", 0);
  return session;
}

static void connect_to(const ngtcp2_path *path, gnutls_session_t session) {
  ngtcp2_callbacks callbacks = {0};
  ngtcp2_settings settings;
  ngtcp2_transport_params params;
  ngtcp2_cid theirs = {.datalen = 18}, ours = {.datalen = 8};
  callbacks.client_initial = ngtcp2_crypto_client_initial_cb;
  callbacks.recv_crypto_data = ngtcp2_crypto_recv_crypto_data_cb;
  callbacks.encrypt = ngtcp2_crypto_encrypt_cb;
  callbacks.decrypt = ngtcp2_crypto_decrypt_cb;
  callbacks.hp_mask = ngtcp2_crypto_hp_mask_cb;
  callbacks.recv_retry = ngtcp2_crypto_recv_retry_cb;
  callbacks.update_key = ngtcp2_crypto_update_key_cb;
  callbacks.delete_crypto_aead_ctx = ngtcp2_crypto_delete_crypto_aead_ctx_cb;
  callbacks.delete_crypto_cipher_ctx = ngtcp2_crypto_delete_crypto_cipher_ctx_cb;
  callbacks.get_path_challenge_data = ngtcp2_crypto_get_path_challenge_data_cb;
  callbacks.version_negotiation = ngtcp2_crypto_version_negotiation_cb;
  callbacks.recv_stream_data = received;
  callbacks.stream_close = stream_closed;
  callbacks.rand = chance;
  callbacks.get_new_connection_id = new_id;
  gnutls_rnd(GNUTLS_RND_RANDOM, theirs.data, theirs.datalen);
  gnutls_rnd(GNUTLS_RND_RANDOM, ours.data, ours.datalen);
  ngtcp2_settings_default(&settings);
  settings.initial_ts = now();
  ngtcp2_transport_params_default(&params);
  params.initial_max_streams_uni = 16;
  params.initial_max_stream_data_uni = 64 * 1024;
  params.initial_max_stream_data_bidi_local = 64 * 1024;
  params.initial_max_data = 1024 * 1024;
  params.max_idle_timeout = 30 * NGTCP2_SECONDS;
  if (ngtcp2_conn_client_new(&conn, &theirs, &ours, path, NGTCP2_PROTO_VER_V1, &callbacks, &settings, &params, NULL,
                             NULL) != 0)
    fail("ngtcp2", "no connection");
  ngtcp2_conn_set_tls_native_handle(conn, session);
}

static void leave(void) {
  uint8_t packet[1452];
  ngtcp2_path_storage path;
  ngtcp2_pkt_info info;
  ngtcp2_connection_close_error why;
  ngtcp2_path_storage_zero(&path);
  ngtcp2_connection_close_error_default(&why);
  ngtcp2_connection_close_error_set_application_error(&why, 0, NULL, 0);
  ngtcp2_ssize length =
      ngtcp2_conn_write_connection_close(conn, &path.path, &info, packet, sizeof packet, &why, now());
  if (length > 0) send(fd, packet, (size_t)length, 0);
}

int main(int count, char **args) {
  if (count != 3) fail("usage", "quic_pipe PORT CA");
  struct sockaddr_in there = {.sin_family = AF_INET}, here;
  socklen_t length = sizeof here;
  there.sin_port = htons((uint16_t)atoi(args[1]));
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  fd = socket(AF_INET, SOCK_DGRAM, 0);
  if (connect(fd, (struct sockaddr *)&there, sizeof there) != 0) fail("connect", strerror(errno));
  getsockname(fd, (struct sockaddr *)&here, &length);
  ngtcp2_path path = {{(struct sockaddr *)&here, sizeof here}, {(struct sockaddr *)&there, sizeof there}, NULL};
  ngtcp2_crypto_conn_ref ref = {conn_of, NULL};
  connect_to(&path, session_of(args[2], &ref));
  for (;;) {
    write_packets();
    ngtcp2_tstamp due = ngtcp2_conn_get_expiry(conn), at = now();
    int wait = due <= at ? 0 : due - at > 1000 * NGTCP2_MILLISECONDS ? 1000 : (int)((due - at) / NGTCP2_MILLISECONDS) + 1;
    struct pollfd ready[2] = {{fd, POLLIN, 0}, {0, POLLIN, 0}};
    poll(ready, 2, wait);
    if (ready[0].revents) read_packets(&path);
    if (ready[1].revents && !read_orders()) break;
    if (ngtcp2_conn_get_expiry(conn) <= now()) {
      int verdict = ngtcp2_conn_handle_expiry(conn, now());
      if (verdict != 0) fail("expiry", ngtcp2_strerror(verdict));
    }
  }
  leave();
  return 0;
}
