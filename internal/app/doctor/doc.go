// Package doctor looks once over everything that can be wrong with a database that carries events, and says for each
// finding what to do. It changes nothing but for a notification on a channel of its own.
//
// It acts as the login of DATABASE_URL, which has to be a member of spectral_operator. What that login may not see is
// reported as unknown, never as fine.
//
// Each file has the checks of one subject; checks.go lists them in their order.
package doctor
