// Access control through a real daemon: TLS, client certificates, and the files and addresses with
// which the daemon refuses to start.
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "client/residentd_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/auth/auth_support.h"
#include "tests/auth/certificates.h"
#include "tests/daemon/daemon.h"
#include "tests/daemon/messages.h"

namespace resident::testing {
namespace {

using ::grpc::StatusCode;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kServerNames[] = "DNS:localhost,IP:127.0.0.1";

std::shared_ptr<grpc::ChannelCredentials> Tls(const std::string& ca,
                                              const IssuedCertificate& client = {}) {
  return grpc::SslCredentials({ca, client.key, client.certificate});
}

class TlsTest : public ::testing::Test {
 protected:
  std::vector<std::string> TlsFlags(const IssuedCertificate& server) {
    return {"--tls_cert=" + folder_.Write("cert", server.certificate),
            "--tls_key=" + folder_.Write("key", server.key)};
  }

  const Folder folder_;
  Authority ca_{"test CA"};
  Authority other_ca_{"another CA"};
};

TEST_F(TlsTest, TheServerIsVerifiedAndPlaintextIsRefused) {
  Daemon daemon(TlsFlags(ca_.Issue("server", kServerNames)));
  EXPECT_TRUE(Call(Open(daemon, Tls(ca_.certificate())), kStatus).ok());
  EXPECT_EQ(Call(Open(daemon, Tls(other_ca_.certificate())), kStatus).error_code(),
            StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(Open(daemon), kStatus).error_code(), StatusCode::UNAVAILABLE);

  client::Options options;
  options.credentials.tls = true;
  options.credentials.tls_ca = ca_.certificate();
  auto client = client::Client::Connect(daemon.address(), options);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE((*client)->Upload(std::vector<float>{1, 2, 3}).ok());
  options.credentials.tls_ca = other_ca_.certificate();
  EXPECT_TRUE(client::IsUnreachable(client::Client::Connect(daemon.address(), options).status()));
}

TEST_F(TlsTest, ClientCertificatesIdentifyTheCaller) {
  auto flags = TlsFlags(ca_.Issue("server", kServerNames));
  flags.push_back("--tls_client_ca=" + folder_.Write("ca", ca_.certificate()));
  flags.push_back("--policy=" + folder_.Write("policy", R"({"identities": {
      "spiffe://test/alice": {"roles": ["submit"]}, "bob": {"roles": ["admin"]},
      "alice": {"roles": ["admin"]}}})"));
  Daemon daemon(flags);
  const auto call = [&](const IssuedCertificate& client, const char* method) {
    return Call(Open(daemon, Tls(ca_.certificate(), client)), method);
  };
  constexpr char kPark[] = "/resident.v1.Admin/Park";
  // The URI has priority over the common name.
  const IssuedCertificate alice = ca_.Issue("alice", "URI:spiffe://test/alice,DNS:bob");
  EXPECT_TRUE(call(alice, kStatus).ok());
  ExpectRefused(call(alice, kPark), StatusCode::PERMISSION_DENIED, {"'spiffe://test/alice'"});
  EXPECT_TRUE(call(ca_.Issue("bob", ""), kPark).ok());
  ExpectRefused(call(ca_.Issue("mallory", ""), kStatus), StatusCode::PERMISSION_DENIED,
                {"'mallory'"});
  ExpectRefused(call(ca_.Issue("", "DNS:bob"), kStatus), StatusCode::UNAUTHENTICATED,
                {"is not an identity"});
  ExpectRefused(call(ca_.Issue("residentd", ""), kStatus), StatusCode::UNAUTHENTICATED,
                {"is not an identity"});
  EXPECT_EQ(call({}, kStatus).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(call(other_ca_.Issue("bob", ""), kStatus).error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, ACommonNameIsNeverMistakenForAUri) {
  auto flags = TlsFlags(ca_.Issue("server", kServerNames));
  flags.push_back("--tls_client_ca=" + folder_.Write("ca", ca_.certificate()));
  flags.push_back("--policy=" + folder_.Write("policy", R"({"identities": {
      "spiffe://test/admin": {"roles": ["admin"]}, "urn:admin": {"roles": ["admin"]},
      "bob": {"roles": ["admin"]}}})"));
  Daemon daemon(flags);
  const auto call = [&](const std::string& common_name, const std::string& alternative_names) {
    return Call(Open(daemon, Tls(ca_.certificate(), ca_.Issue(common_name, alternative_names))),
                kStatus);
  };
  EXPECT_TRUE(call("anyone", "URI:spiffe://test/admin").ok());
  EXPECT_TRUE(call("bob", "").ok());
  for (const char* name : {"spiffe://test/admin", "urn:admin"}) {
    ExpectRefused(call(name, ""), StatusCode::UNAUTHENTICATED, {"common name", name, "a URI"});
    ExpectRefused(call(name, "DNS:test"), StatusCode::UNAUTHENTICATED, {"common name", name});
  }
  ExpectRefused(call("anyone", "URI:bob"), StatusCode::UNAUTHENTICATED, {"'bob'", "no scheme"});
  // Only the URI counts, even if it has no rights and the common name has.
  ExpectRefused(call("bob", "URI:spiffe://test/mallory"), StatusCode::PERMISSION_DENIED,
                {"'spiffe://test/mallory'"});
}

TEST_F(TlsTest, WithoutARequiredCertificateATokenIsEnough) {
  auto flags = TlsFlags(ca_.Issue("server", kServerNames));
  flags.push_back("--tls_client_ca=" + folder_.Write("ca", ca_.certificate()));
  flags.push_back("--tls_require_client_cert=false");
  flags.push_back("--policy=" + folder_.Write("policy", kFourIdentities));
  flags.push_back("--token_file=" + folder_.Write("tokens", FourTokens()));
  Daemon daemon(flags);
  const auto plain = Open(daemon, Tls(ca_.certificate()));
  EXPECT_TRUE(Call(plain, kStatus, {Bearer(kAdminToken)}).ok());
  EXPECT_EQ(Call(plain, kStatus).error_code(), StatusCode::UNAUTHENTICATED);
  const auto certified = Open(daemon, Tls(ca_.certificate(), ca_.Issue("admin", "")));
  EXPECT_TRUE(Call(certified, kStatus).ok());
  EXPECT_EQ(Call(certified, kStatus, {"Bearer wrong"}).error_code(), StatusCode::UNAUTHENTICATED);
}

TEST_F(TlsTest, CertificatesAreReplacedWhileItServes) {
  Daemon daemon(TlsFlags(ca_.Issue("server", kServerNames)));
  const auto before = Open(daemon, Tls(ca_.certificate()));
  EXPECT_TRUE(Call(before, kStatus).ok());

  // Half of the replacement: the new certificate with the old key.
  const IssuedCertificate next = other_ca_.Issue("server", kServerNames);
  folder_.Write("cert", next.certificate);
  EXPECT_TRUE(
      Eventually([&] { return daemon.Output().find("is not the key of") != std::string::npos; }));
  EXPECT_TRUE(Call(Open(daemon, Tls(ca_.certificate())), kStatus).ok());

  folder_.Write("key", next.key);
  EXPECT_TRUE(
      Eventually([&] { return Call(Open(daemon, Tls(other_ca_.certificate())), kStatus).ok(); }));
  EXPECT_FALSE(Call(Open(daemon, Tls(ca_.certificate())), kStatus).ok());
  EXPECT_TRUE(Call(before, kStatus).ok()) << "an open connection was closed";
}

TEST_F(TlsTest, FilesThatEveryUserMayWriteAreRefusedAndOthersCauseWarnings) {
  const auto flags = TlsFlags(ca_.Issue("server", kServerNames));
  const auto refused = [&](std::vector<std::string> all, const std::string& path) {
    const mode_t mode = std::filesystem::is_directory(path) ? 0777 : 0646;
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    const Daemon::Failure failure = Daemon::StartExpectingFailure(all);
    EXPECT_EQ(failure.exit.status, 1);
    EXPECT_THAT(failure.output, HasSubstr(path + " may be written by every user"));
    EXPECT_THAT(failure.output, HasSubstr("Fix: chmod o-w " + path));
    ASSERT_EQ(chmod(path.c_str(), mode & 0755), 0);
  };
  refused(flags, folder_.Path("key"));
  refused(flags, folder_.Path("cert"));
  const std::string policy = folder_.Write("policy", kFourIdentities);
  const std::string tokens = folder_.Write("tokens", FourTokens());
  refused({"--policy=" + policy}, policy);
  refused({"--policy=" + policy, "--token_file=" + tokens}, tokens);
  const std::string state = folder_.Path("state");
  std::filesystem::create_directory(state);
  refused({"--state_dir=" + state}, state);

  auto all = flags;
  all.push_back("--state_dir=" + state);
  ASSERT_EQ(chmod(state.c_str(), 0770), 0);
  ASSERT_EQ(chmod(folder_.Path("key").c_str(), 0644), 0);
  const Daemon daemon(all);
  EXPECT_THAT(daemon.Output(), HasSubstr("warning: " + state + " may be written by its group"));
  EXPECT_THAT(daemon.Output(), HasSubstr("key may be read by every user of this machine"));
  EXPECT_TRUE(Call(Open(daemon, Tls(ca_.certificate())), kStatus).ok());
}

TEST(StartTest, AnUnencryptedNetworkIsServedOnlyOnRequest) {
  const auto refused = [](const std::vector<std::string>& flags, const std::string& part,
                          int status = 2) {
    const Daemon::Failure failure = Daemon::StartExpectingFailure(flags);
    EXPECT_EQ(failure.exit.status, status);
    EXPECT_THAT(failure.output, HasSubstr(part));
    EXPECT_THAT(failure.output, HasSubstr("Fix: "));
  };
  const Folder folder;
  const std::string policy = "--policy=" + folder.Write("policy", kFourIdentities);
  refused({"--address=0.0.0.0:0"}, "can be reached from other machines");
  refused({"--address=[::]:0"}, "can be reached from other machines");
  refused({"--address=0.0.0.0:0", "--insecure_non_loopback", policy}, "sent unencrypted");
  refused({"--tls_cert=" + folder.Path("none")}, "--tls_cert without --tls_key");
  refused({"--tls_client_ca=" + folder.Path("none")}, "--tls_client_ca without --tls_cert");
  refused({"--token_file=" + folder.Path("none")}, "--token_file without --policy");
  refused({"--policy=" + folder.Path("none")}, "cannot read", /*status=*/1);
  refused({"--policy=" + folder.Write("bad", "{")}, "at line 1");
  Daemon trusted({"--insecure_non_loopback"}, "0.0.0.0:0");
  // The daemon may serve before this line has arrived.
  EXPECT_TRUE(Eventually(
      [&] { return trusted.Output().find("every caller has all roles") != std::string::npos; }));
  EXPECT_THAT(trusted.Output(),
              HasSubstr("warning: --insecure_non_loopback: anyone who can reach"));
}

TEST_F(TlsTest, OtherMachinesNeedCertificatesUnlessAFlagAllowsIt) {
  auto tls = TlsFlags(ca_.Issue("server", kServerNames));
  const std::string client_ca = "--tls_client_ca=" + folder_.Write("ca", ca_.certificate());
  const std::string allow = "--allow_clients_without_certificates";
  constexpr char kEverywhere[] = "0.0.0.0:0";
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), tls.begin(), tls.end());
    return more;
  };
  const std::string address = std::string("--address=") + kEverywhere;
  for (const auto& flags : {with({address}), with({address, "--insecure_non_loopback"}),
                            with({address, client_ca, "--tls_require_client_cert=false"})}) {
    const Daemon::Failure failure = Daemon::StartExpectingFailure(flags);
    EXPECT_EQ(failure.exit.status, 2);
    EXPECT_THAT(failure.output, HasSubstr("clients need no certificate"));
    EXPECT_THAT(failure.output, HasSubstr("Fix: "));
    EXPECT_THAT(failure.output, HasSubstr(allow));
  }
  {
    const Daemon daemon(with({client_ca}), kEverywhere);
    EXPECT_THAT(daemon.Output(), Not(HasSubstr(allow)));
  }
  const Daemon open(with({allow}), kEverywhere);
  EXPECT_THAT(open.Output(), HasSubstr("warning: " + allow + ": anyone who can reach 0.0.0.0:0"));
  // On the loopback interface the flag is not needed, and there is no warning.
  const Daemon local(tls);
  EXPECT_THAT(local.Output(), Not(HasSubstr(allow)));
}

}  // namespace
}  // namespace resident::testing
