from sqlalchemy import text
def test_db(database):
    database.run(lambda c: c.execute(text("select count(*) from messages")).all())
def test_redis(opened):
    r=opened()
def test_empty(empty_database_url): ...
